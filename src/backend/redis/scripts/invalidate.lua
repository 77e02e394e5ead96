-- Removes an entry, burns a fence and ends the lease, so that no load under way is stored.
--
-- Returns the fence, or {fence} if the entry was moved to `trash`.
--
-- failure: the record of failed loads, which ends
-- entry_before, entry_after: the entries of the neighbouring schemas
-- tiers: the channel of local tiers that may have the entry, or ''
-- trash: takes a large entry until it ends
local lease, fence, entry, channel, failure = unpack(KEYS)
local entry_before, entry_after, trash = unpack(KEYS, 6)
local fence_ms, tiers = unpack(ARGV)

-- include: fence_at, fence_text, next_fence, entry_at, burn, publish_to_all, move_away
-- include: tell_tiers
local last = fence_at(fence)
local _, stored = entry_at(entry)
local burnt = next_fence(last, stored)
tell_tiers(tiers, lease, fence_text(burnt))
local is_moved = move_away(entry, trash)
redis.call('DEL', failure, entry, entry_before, entry_after)
local registered = burn(lease, fence, fence_text(burnt), fence_ms)
publish_to_all(channel, registered, 'i' .. fence_text(burnt))
return is_moved and { burnt } or burnt
