-- Writes an entry, ends its lease and publishes the entry, if its fence is the last one of the
-- name. With a `ttl_ms` of '0', or on a full server, publishes the entry and does not write it.
-- Returns
-- | 2, plus REFUSED        | if the entry is stored
-- | 1, plus REFUSED        | if the entry is only pushed
-- | 0                      | if the fence is not the last fence
-- | {'newer', entry, time} | if an entry with a greater fence stands
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `head` and `rest`; or nil
-- tiers: the channel of local tiers that may have the entry which this one replaces, or ''
-- head, rest: the bytes of the entry before and behind the time at which it is stored
-- size: of the entry in bytes
local lease, fence, entry, channel, failure, staged = unpack(KEYS)
local owner, granted, tiers, head, rest, size, ttl_ms = unpack(ARGV)
local PUSHED, STORED = 1, 2

local time = redis.call('TIME')
local stored_at = time[1] .. string.sub('00000' .. time[2], -6)
local bytes = head .. stored_at .. rest

-- The usual case: the lease is as it was granted, but for a few ids behind it; its fence is the
-- last one; and the entry is pushed.
local value, own = redis.pcall('GET', lease), owner .. ':' .. granted
local is_stored = type(value) == 'string' and string.sub(value .. ',', 1, #own + 1) == own .. ','
  and #value < 256 and ttl_ms ~= '0' and not staged
  and redis.pcall('GET', fence) == granted
  and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
if is_stored then
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. granted) end
  redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
  redis.call('DEL', lease, failure)
  if value == own then
    local command = string.find(channel, '}:s', 1, true) and 'SPUBLISH' or 'PUBLISH'
    local heard = redis.pcall(command, channel, 'e' .. bytes)
    return STORED + (type(heard) == 'number' and 0 or 4)
  end
end

