-- Grants a lease to one holder, first come, first served: a fair mutex, and the writer of a read-write lock.
-- KEYS 1 lease, 2 fence, 3 queue, 4 deadlines of its places (writers only: 5 readers, 6 writers in the queue)
-- ARGV 1 token, 2 lease ms, 3 fence life ms, 4 ms for which a place is kept (0: none is taken)
-- Reply {'granted', fence, now us} | {'held', fence or 0, ms left, holders, now us}

local token, held, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end

if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return {'granted', held, now()}
end

local at = milliseconds()
local readers, reading = 0, 0
if KEYS[5] then
  readers, reading, foreign = holds_at(KEYS[5], at)
  if foreign then return foreign end
end
local first, kept = first_in(KEYS[3], KEYS[4], KEYS[6], at)

if not token and readers == 0 and (not first or first == ARGV[1]) then
  leave(KEYS[3], KEYS[4], KEYS[6], ARGV[1])
  local fence = next_fence(fence_at(KEYS[2]), 0)
  redis.call('SET', KEYS[1], ARGV[1] .. ':' .. digits(fence), 'PX', ARGV[2])
  redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[3])
  return {'granted', fence, now()}
end

if ARGV[4] ~= '0' then take_place(KEYS[3], KEYS[4], KEYS[6], ARGV[1], at, ARGV[4]) end
if token then return {'held', held, left, 1, now()} end
if readers > 0 then return {'held', 0, reading, readers, now()} end
return {'held', 0, kept, 0, now()}
