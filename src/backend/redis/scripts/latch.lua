-- Sets a latch unless there is one, or counts it down once for each id. A step by 0 only reads it.
-- The latch remembers the count that each step left until it ends: a step whose answer was lost may
-- be sent again after the latch is done, and zero belongs to the step that has finished the latch.
-- Returns 1 if the latch was set under this id, now or before, or 0. Of a step, returns
-- {'left', the count that it left, ms until it ends, REFUSED or 0}, or {'unset'}.
-- set_ms: the time to live of a latch that is to be set; '' for a step
local latch, channel = unpack(KEYS)
local id, count, set_ms = unpack(ARGV)

if redis.call('EXISTS', latch) == 0 then
  if set_ms == '' then return {'unset'} end
  redis.call('HSET', latch, 'left', count, 'set', id, 'ttl', set_ms)
  redis.call('PEXPIRE', latch, set_ms)
  return 1
end

local fields = read('HMGET', latch, 'left', 'set', 'ttl', id) or {}
local left, set_by, ttl, told = tonumber(fields[1]), fields[2], tonumber(fields[3]), fields[4]
local ends = redis.call('PTTL', latch)
if not left or not set_by or not ttl or ends < 0 then fail_foreign(latch, 'a latch') end
if set_ms ~= '' then return set_by == id and 1 or 0 end
if told or left == 0 or count == '0' then return {'left', tonumber(told) or left, ends, 0} end

left = math.max(0, left - count)
local is_done = left == 0
-- At least 1 ms: a key whose time is over would be removed here, and made anew without an end.
ends = is_done and ttl or math.max(ends, 1)
-- First, so that a full server lets the rest through.
redis.call('PEXPIRE', latch, ends)
redis.call('HSET', latch, 'left', left, id, left)
if not is_done then return {'left', left, ends, 0} end
publish(channel, 'w')
return {'left', left, ends, refused}
