-- Removes an entry, burns a fence and ends the lease, so that no load under way is stored.
-- KEYS 1 lease, 2 fence, 3 entry, 4 channel, 5 and 6 entries of the neighbouring schemas
-- ARGV 1 fence life ms
-- Reply the fence

local last = fence_at(KEYS[2])
local _, stored = entry_at(KEYS[3])
local fence = next_fence(last, stored)
redis.call('DEL', KEYS[1], KEYS[3], KEYS[5], KEYS[6])
local burnt = redis.pcall('SET', KEYS[2], digits(fence), 'PX', ARGV[1])
-- A full server refuses the write. Without a fence no commit passes either.
if type(burnt) == 'table' and burnt.err then redis.call('DEL', KEYS[2]) end
push(KEYS[4], 'i' .. digits(fence))
return fence
