-- Makes a writer a reader, with nobody in between, and tells the readers who wait.
-- KEYS 1 writer's lease, 2 channel, 3 queue, 4 deadlines of its places, 5 readers, 6 writers in the queue
-- ARGV 1 token of the writer, 2 token of the reader, 3 lease ms
-- Reply 0, granted | nothing if the writer no longer has it

local at = milliseconds()
if is_held(KEYS[5], ARGV[2], 1, at) then return 0 end
if lease_at(KEYS[1]) ~= ARGV[1] then return nil end
local _, _, foreign = holds_at(KEYS[5], at)
if foreign then return foreign end
redis.call('DEL', KEYS[1])
hold(KEYS[5], ARGV[2], 1, at, ARGV[3])
local first = first_in(KEYS[3], KEYS[4], KEYS[6], at)
if first and not redis.call('ZSCORE', KEYS[6], first) then push(KEYS[2], 'w') end
return 0
