-- Writes an entry without a load, burns a fence and ends the lease, so that no load under way is
-- stored.
--
-- Returns the fence, which is written into the entry.
--
-- entry_before, entry_after: the entries of the neighbouring schemas
local lease, fence, entry, channel, entry_before, entry_after = unpack(KEYS)
local bytes, ttl_ms, fence_ms, push_limit = unpack(ARGV)

-- include: fence_at, fence_text, next_fence, entry_at, publish, entry_message
local last = fence_at(fence)
local _, stored = entry_at(entry)
local burnt = next_fence(last, stored)
local text = fence_text(burnt)
bytes = string.sub(bytes, 1, 4) .. text .. string.sub(bytes, 21)
-- The writes that a full server refuses come first, so that it refuses all or none.
redis.call('SET', entry, bytes, 'PX', ttl_ms)
redis.call('SET', fence, text, 'PX', fence_ms)
redis.call('DEL', lease, entry_before, entry_after)
publish(channel, entry_message(bytes, push_limit))
return burnt
