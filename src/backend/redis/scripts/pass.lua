-- Passes a lease on from its holder to another token, with a new fence.
-- KEYS 1 lease, 2 fence
-- ARGV 1 token of the holder, 2 token of the next, 3 lease ms, 4 fence life ms
-- Reply the fence, granted | nothing if the holder no longer has it

local token, held = lease_at(KEYS[1])
-- Kept for one who was called (the fence 0) is not held yet.
if held == 0 then return nil end
if token == ARGV[2] then return held end
if token ~= ARGV[1] then return nil end
local fence = next_fence(fence_at(KEYS[2]), 0)
redis.call('SET', KEYS[1], ARGV[2] .. ':' .. digits(fence), 'PX', ARGV[3])
redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[4])
return fence
