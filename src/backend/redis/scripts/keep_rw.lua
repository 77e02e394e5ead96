-- Keeps the queue entries of the process of some claims for a read-write lock. Hands the lock over
-- if it has no writer.
--
-- Returns the same as `keep_queued`.
--
-- entry_ms: how long the queue entries are kept; the rest as for `release_rw`
local lease, channel, fence, queue, deadlines, readers, writers = unpack(KEYS)
local hands_over, handover_ms, fence_ms, entry_ms = unpack(ARGV)
local claims = { unpack(ARGV, 5) }

-- include: clock_ms, keep_entries, lease_at, holds_at, next_rw_holders
local at = now_ms()
local has_lapsed, stands = keep_entries({ queue }, deadlines, { writers }, claims, at, entry_ms)
local holder, _, left, foreign = lease_at(lease)
if foreign then return foreign end
local told = 0
if not holder then
  local to = {
    lease = lease, fence = fence, channel = channel,
    hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
  }
  told = next_rw_holders(to, queue, deadlines, readers, writers, at)
  local _, reading_ms, not_holds = holds_at(readers, at)
  if not_holds then return not_holds end
  left = math.max(redis.call('PTTL', lease), reading_ms)
end
return { told, left, has_lapsed, unpack(stands) }
