-- Sets the windows of an entry from now on without writing its payload, or ends its fresh and its
-- stale window. Burns a fence and ends the lease, so that no load under way is stored.
--
-- Returns the fence, and 1 if there is an entry now. Without an entry, new windows change nothing,
-- and the fence is 0.
--
-- failure: the record of failed loads, which ends
-- entry_before, entry_after: the entries of the neighbouring schemas
-- tiers: the channel of local tiers that may have the entry, or ''
-- windows: as in the header, or '' to end the fresh and the stale one
local lease, fence, entry, channel, failure = unpack(KEYS)
local entry_before, entry_after = unpack(KEYS, 6)
local fence_ms, windows, ttl_ms, tiers = unpack(ARGV)

-- include: fence_at, fence_text, next_fence, entry_at, time_text, burn, publish_to_all
-- include: tell_tiers
local found, stored = entry_at(entry)
local text = fence_text(next_fence(fence_at(fence), stored))
-- An entry of format 1 has no windows.
local has_windows = found and string.sub(found, 3, 3) == '2'
-- The windows that an expiry has ended do not begin anew.
local has_expired = has_windows and string.sub(found, 61, 80) == ('0'):rep(20)
  and string.sub(found, 81, 90) ~= ('0'):rep(10)

local function set_windows()
  if not has_windows or has_expired then return {0, 0} end
  -- A full server refuses the first write, and so all or none.
  redis.call('SETRANGE', entry, 4, text .. time_text())
  redis.call('SETRANGE', entry, 60, windows)
  redis.call('PEXPIRE', entry, ttl_ms)
end

local function end_windows()
  local kept = has_windows and tonumber(string.sub(found, 81, 90), 16) or 0
  local left = math.min(kept, redis.call('PTTL', entry))
  redis.call('DEL', entry_before, entry_after)
  if left > 0 then
    local age = math.max(tonumber(time_text()) - tonumber(string.sub(found, 21, 36)), 0)
    local ended = ('0'):rep(20) .. string.format('%010x', age / 1000 + left)
    if type(redis.pcall('SETRANGE', entry, 4, text)) == 'number' then
      redis.call('SETRANGE', entry, 60, ended)
      redis.call('PEXPIRE', entry, left)
      return
    end
  end
  found = false
  redis.call('DEL', entry)
end

tell_tiers(tiers, lease, text)
local refused
if windows == '' then end_windows() else refused = set_windows() end
if refused then return refused end
redis.call('DEL', failure)
local registered = burn(lease, fence, text, fence_ms)
publish_to_all(channel, registered, 'i' .. text)
return {tonumber(text), found and 1 or 0}
