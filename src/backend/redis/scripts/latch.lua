-- Sets a latch unless there is one, or counts it down once for each id. A step by 0 only reads it.
-- Returns 1 if the latch was set under this id, now or before, or 0. Of a step, returns
-- {'left', the count that it left, ms until it ends, REFUSED or 0}, or {'unset'}.
-- set_ms: the time to live of a latch that is to be set; '' for a step
local latch, channel = unpack(KEYS)
local id, count, set_ms = unpack(ARGV)

local function set(left, by, ttl)
  redis.call('HSET', latch, 'left', left, 'set', by, 'ttl', ttl)
  redis.call('PEXPIRE', latch, ttl)
end
if redis.call('EXISTS', latch) == 0 then
  if set_ms == '' then return {'unset'} end
  set(count, id, set_ms)
  return 1
end

local fields = read('HMGET', latch, 'left', 'set', 'ttl', id) or {}
local left, set_by, ttl, told = tonumber(fields[1]), fields[2], tonumber(fields[3]), fields[4]
local ends = redis.call('PTTL', latch)
if not left or not set_by or not ttl or ends < 0 then fail_foreign(latch, 'a latch') end
if set_ms ~= '' then return set_by == id and 1 or 0 end
if left == 0 or told or count == '0' then
  return {'left', left > 0 and tonumber(told) or left, ends, 0}
end

left = math.max(0, left - count)
keep(latch, ends)
if left > 0 then
  redis.call('HSET', latch, 'left', left, id, left)
  return {'left', left, ends, 0}
end
-- A step that is sent again finds zero, so that the ids are not needed any more.
redis.call('DEL', latch)
set(0, set_by, ttl)
publish(channel, 'w')
return {'left', 0, ttl, refused}
