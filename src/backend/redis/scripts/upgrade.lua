-- Makes a reader the writer, if there is no other reader.
-- KEYS 1 writer's lease, 2 fence, 3 readers
-- ARGV 1 token of the reader, 2 token of the writer, 3 lease ms, 4 fence life ms
-- Reply the fence, granted | nothing, refused

local token, held, _, foreign = lease_at(KEYS[1])
if foreign then return foreign end
if token == ARGV[2] then return held end
local at = milliseconds()
local readers
readers, _, foreign = holds_at(KEYS[3], at)
if foreign then return foreign end
if token or readers ~= 1 or not is_held(KEYS[3], ARGV[1], 1, at) then return nil end
redis.call('DEL', KEYS[3])
local fence = next_fence(fence_at(KEYS[2]), 0)
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. digits(fence), 'PX', ARGV[3])
redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[4])
return fence
