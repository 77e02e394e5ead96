-- Changes the entry of a name without a load: `put`, `touch`, `expire`, `invalidate`, or
-- `supersede`, which leaves it. Takes a new fence and ends the lease, so that no load under way can
-- commit. Returns the fence, or 0 if nothing changed.
-- failure: the record of failed loads, which ends
-- entry_before, entry_after: the entries of the neighbouring schemas
-- staged: holds a large entry that is put, in place of `kind` and `rest`; or nil
-- tiers: the channel of local tiers that may have the entry, or ''
-- kind, rest: the bytes of an entry before its fence, and behind its time
-- windows: of `touch`, as in the header
-- seen: the fence of the entry that `touch` means, or 0 for whatever stands
local lease, fence, entry, channel, failure, entry_before, entry_after, staged = unpack(KEYS)
local what, fence_ms, tiers = unpack(ARGV)

local found, stored = entry_at(entry)
local at_us, last = now(), fence_at(fence)
local text = digits(math.max(at_us, last + 1, stored + 1))
local windows_now = found and string.sub(found, 53, 82)
if what ~= 'supersede' then tell_tiers(tiers, lease, text) end

-- A full server refuses the first write of `put` and `touch`, and so all or none.
local bytes = nil
if what == 'put' then
  local kind, rest, _, ttl_ms = unpack(ARGV, 4)
  if staged and not move_entry(staged, entry, ttl_ms, 4, text .. digits(at_us)) then
    return redis.error_reply('UNSTAGED the entry to write is not there')
  elseif not staged then
    bytes = kind .. text .. digits(at_us) .. rest
    redis.call('SET', entry, bytes, 'PX', ttl_ms)
  end
elseif what == 'touch' then
  local windows, ttl_ms, seen = unpack(ARGV, 4)
  local is_other = seen ~= '0' and tonumber(seen) ~= stored
  -- The windows that an expiry has ended do not begin anew.
  local has_expired = '^' .. ('0'):rep(20) .. '.*[^0]'
  local is_value = found and string.sub(found, 4, 4) == 'v'
  if not is_value or is_other or string.find(windows_now, has_expired) then return 0 end
  redis.call('SETRANGE', entry, 4, text .. digits(at_us))
  redis.call('SETRANGE', entry, 52, windows)
  redis.call('PEXPIRE', entry, ttl_ms)
elseif what == 'expire' then
  local kept = windows_now and tonumber(string.sub(windows_now, 21), 16) or 0
  local left = math.min(kept, redis.call('PTTL', entry))
  -- A full server refuses the first write, and then the entry goes.
  if left > 0 and type(redis.pcall('SETRANGE', entry, 4, text)) == 'number' then
    local age = math.max(at_us - tonumber(string.sub(found, 21, 36)), 0)
    local ended = ('0'):rep(20) .. string.format('%010x', age / 1000 + left)
    redis.call('SETRANGE', entry, 52, ended)
    redis.call('PEXPIRE', entry, left)
  else
    redis.call('DEL', entry)
  end
elseif what == 'invalidate' then
  redis.call('DEL', entry)
end
if what ~= 'touch' and what ~= 'supersede' then redis.call('DEL', entry_before, entry_after) end
redis.call('DEL', failure)
local registered = end_lease(lease)
-- A full server refuses the write. Without a fence, no commit passes either.
if not redis.pcall('SET', fence, text, 'PX', fence_ms).ok then redis.call('DEL', fence) end

if what == 'put' then
  publish_entry(channel, registered, bytes, text, ARGV[6])
else
  publish_to_all(channel, registered, what == 'supersede' and 'w' or 'i' .. text)
end
return tonumber(text)
