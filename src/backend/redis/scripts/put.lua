-- Writes an entry without a load, burns a fence and ends the lease, so that no load under way is
-- stored.
--
-- Returns the fence, which is written into the entry. Fails if the staged entry is not there.
--
-- entry_before, entry_after: the entries of the neighbouring schemas
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `kind` and `rest`; or nil
-- size: of the entry in bytes
-- tiers: the channel of local tiers that may have the entry, or ''
-- kind, rest: the bytes of the entry before its fence, and behind its time
local lease, fence, entry, channel, failure = unpack(KEYS)
local entry_before, entry_after, staged = unpack(KEYS, 6)
local kind, rest, size, ttl_ms, fence_ms, push_limit, tiers = unpack(ARGV)

-- include: fence_at, fence_text, next_fence, entry_at, publish_entry, move_entry, time_text
-- include: end_lease, tell_tiers
local last = fence_at(fence)
local _, stored = entry_at(entry)
local burnt = next_fence(last, stored)
local text = fence_text(burnt)
tell_tiers(tiers, lease, text)
local bytes
-- A full server refuses the first write, and so all or none.
if staged then
  if not move_entry(staged, entry, ttl_ms, 4, text .. time_text()) then
    return redis.error_reply('UNSTAGED the entry to write is not there')
  end
else
  bytes = kind .. text .. time_text() .. rest
  redis.call('SET', entry, bytes, 'PX', ttl_ms)
end
redis.call('SET', fence, text, 'PX', fence_ms)
local registered = end_lease(lease)
redis.call('DEL', failure, entry_before, entry_after)
publish_entry(channel, registered, bytes, push_limit, { text, size, entry })
return burnt
