-- Burns a fence and ends the lease, so that no load under way is stored. The entry stays.
--
-- Returns the fence.
--
-- failure: the record of failed loads, which ends
local lease, fence, entry, channel, failure = unpack(KEYS)
local fence_ms = ARGV[1]

-- include: fence_at, fence_text, next_fence, entry_at, burn, publish_to_all
local _, stored = entry_at(entry)
local burnt = next_fence(fence_at(fence), stored)
redis.call('DEL', failure)
local registered = burn(lease, fence, fence_text(burnt), fence_ms)
publish_to_all(channel, registered, 'w')
return burnt
