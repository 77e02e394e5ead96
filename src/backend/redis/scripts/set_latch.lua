-- Sets a latch, unless there is one.
--
-- Returns 1 if the latch was set under this id, now or before, or 0 if it was set under another id.
local latch = KEYS[1]
local id, count, ttl_ms = unpack(ARGV)

-- include: latch_at
local left, _, set, _, foreign = latch_at(latch)
if foreign then return foreign end
if left then return set == id and 1 or 0 end
redis.call('HSET', latch, 'left', count, 'set', id, 'ttl', ttl_ms)
redis.call('PEXPIRE', latch, ttl_ms)
return 1
