-- Grants a reader its hold, beside other readers, unless a writer holds the lock or is before it in the queue.
-- KEYS 1 writer's lease, 2 queue, 3 deadlines of its places, 4 readers, 5 writers in the queue
-- ARGV 1 token, 2 lease ms, 3 ms for which a place is kept (0: none is taken)
-- Reply 0, granted | {'held', fence or 0, ms left, holders}

local at = milliseconds()
local readers, _, foreign = holds_at(KEYS[4], at)
if foreign then return foreign end

if is_held(KEYS[4], ARGV[1], 1, at) then
  hold(KEYS[4], ARGV[1], 1, at, ARGV[2])
  return 0
end

local token, held, left
token, held, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end

local writer, kept = first_in(KEYS[5], KEYS[3], KEYS[2], at)
local ticket = redis.call('ZSCORE', KEYS[2], ARGV[1])
local behind = writer and not (ticket and tonumber(ticket) < tonumber(redis.call('ZSCORE', KEYS[5], writer)))

if not token and not behind then
  leave(KEYS[2], KEYS[3], nil, ARGV[1])
  hold(KEYS[4], ARGV[1], 1, at, ARGV[2])
  return 0
end

if ARGV[3] ~= '0' then take_place(KEYS[2], KEYS[3], nil, ARGV[1], at, ARGV[3]) end
if token then return {'held', held, left, 1} end
return {'held', 0, kept, readers}
