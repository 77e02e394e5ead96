-- Writes an entry without a load, burns a fence and ends the lease, so that no load under way is stored.
-- KEYS 1 lease, 2 fence, 3 entry, 4 channel, 5 and 6 entries of the neighbouring schemas
-- ARGV 1 entry (its fence is set here), 2 ttl ms, 3 fence life ms, 4 limit of a pushed entry
-- Reply the fence

local last = fence_at(KEYS[2])
local _, stored = entry_at(KEYS[3])
local fence = next_fence(last, stored)
local entry = string.sub(ARGV[1], 1, 4) .. digits(fence) .. string.sub(ARGV[1], 21)
-- First what a full server refuses, so that it refuses all or nothing.
redis.call('SET', KEYS[3], entry, 'PX', ARGV[2])
redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[3])
redis.call('DEL', KEYS[1], KEYS[5], KEYS[6])
push_entry(KEYS[4], entry, ARGV[4])
return fence
