-- Writes an entry, ends its lease and publishes the entry, if its fence is the last one of the
-- name. With a `ttl_ms` of '0', or on a full server, publishes the entry and does not write it.
-- Returns 2 if stored or 1 if only pushed, plus REFUSED; 0 if the fence is not the last one; or
-- {'newer', entry, time} if an entry with a greater fence stands.
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `head` and `rest`; or nil
-- tiers: the channel of local tiers that may have the entry which this one replaces, or ''
-- head, rest: the bytes of the entry before and behind the time at which it is stored
-- size: of the entry in bytes
local lease, fence, entry, channel, failure, staged = unpack(KEYS)
local owner, granted, tiers, head, rest, size, ttl_ms = unpack(ARGV)
local PUSHED, STORED = 1, 2

local stored_at = time_text()
local bytes = head .. stored_at .. rest

-- The usual case: the lease is as it was granted, but for a few ids behind it; its fence is the
-- last one; and the entry is pushed. It does without most functions and patterns: a server whose
-- caches are cold spends 20 us on them.
local value, own = redis.pcall('GET', lease), owner .. ':' .. granted
if type(value) == 'string' and string.sub(value .. ',', 1, #own + 1) == own .. ','
  and #value < 256 and ttl_ms ~= '0' and not staged
  and redis.pcall('GET', fence) == granted
  and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok then
  tell_tiers(tiers, lease, granted)
  redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
  redis.call('DEL', lease, failure)
  publish_to_all(channel, string.sub(value, #own + 1), 'e' .. bytes)
  return STORED + refused
end

local mine, last, is_committed = tonumber(granted), fence_at(fence)
local _, stored = entry_at(entry)
local is_owner = is_held_by(lease, owner)
if staged and (last ~= mine or stored == mine or is_committed) then redis.call('DEL', staged) end
if last ~= mine then
  if stored > mine then return {'newer', redis.call('GET', entry), stored_at} end
  -- The lease stands if the server evicted the fence alone. It is lost with its registrations if
  -- the server lost its data. Any other lease is that of a later load.
  if is_owner then
    publish_to_all(channel, end_lease(lease), 'w')
  elseif redis.call('EXISTS', lease) == 0 then
    publish(channel, 'w')
  end
  return 0
end
if stored == mine then return STORED end
if is_committed then return PUSHED end

local is_stored = false
if ttl_ms ~= '0' then
  tell_tiers(tiers, lease, granted)
  is_stored = staged and move_entry(staged, entry, ttl_ms, 20, stored_at)
    or not staged and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
  -- A full server refuses the write. The entry that stands is older.
  if not is_stored then redis.pcall('DEL', entry) end
end
-- A commit that is sent twice is recognised, even if the entry that it wrote is gone.
redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
redis.call('DEL', failure)
local registered = is_owner and end_lease(lease) or ''
publish_entry(channel, registered, not staged and bytes, is_stored and granted, size)
return (is_stored and STORED or PUSHED) + refused
