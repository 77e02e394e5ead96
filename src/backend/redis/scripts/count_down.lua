-- Counts a latch down, once for each id, and wakes the waiters when nothing is left. By 0, only
-- reads what is left.
--
-- Returns {'left', count, ms until it ends} and, if it published, 1 if that was refused or 0;
-- {'unset'} if there is no latch. A step that is sent again is told the count that it left.
local latch, channel = KEYS[1], KEYS[2]
local id, by = ARGV[1], tonumber(ARGV[2])

-- include: latch_at, publish
local left, ends, set, ttl, foreign = latch_at(latch)
if foreign then return foreign end
if not left then return {'unset'} end
if left == 0 or by == 0 then return {'left', left, ends} end
local told = redis.call('HMGET', latch, id)[1]
if told then return {'left', tonumber(told), ends} end

left = math.max(0, left - by)
-- Lets a full server count down: in a script that has written it lets all writes through, and this
-- write needs no memory.
redis.call('HDEL', latch, id)
if left > 0 then
  redis.call('HSET', latch, 'left', left, id, left)
  return {'left', left, ends}
end
-- A step that is sent again finds zero, so that the ids are not needed any more.
redis.call('DEL', latch)
redis.call('HSET', latch, 'left', 0, 'set', set, 'ttl', ttl)
redis.call('PEXPIRE', latch, ttl)
return {'left', 0, ttl, publish(channel, 'w') == REFUSED and 1 or 0}
