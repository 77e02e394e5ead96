-- Keeps the queue entries of the process of some claims for read-write locks. Hands each lock over
-- if it has no writer.
--
-- KEYS: for each lock its lease, channel, fence, queue, deadlines, readers and writers
--
-- Returns the same as `keep_queued`.
--
-- hands_over, handover_ms: as for `release_rw`; the rest as for `keep_queued`
local hands_over, handover_ms, entry_ms = unpack(ARGV)

-- include: clock_ms, keep_entries, lease_at, holds_at, next_rw_holders, keep_each
local at = now_ms()
return keep_each(7, 4, function(keys, fence_ms, claims)
  local lease, channel, fence, queue, deadlines, readers, writers = unpack(keys)
  local has_lapsed, stands = keep_entries({ queue }, deadlines, { writers }, claims, at, entry_ms)
  -- What it says is of no interest while it is held. One look in eight finds a value that is none.
  local holder, _, left, foreign = true, 0, redis.call('PTTL', lease)
  if left <= 0 or at % 8 == 0 then holder, _, left, foreign = lease_at(lease) end
  if foreign then return foreign end
  local told, unheard_ms, handed = 0
  if not holder then
    local to = {
      lease = lease, fence = fence, channel = channel,
      hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
    }
    told, unheard_ms, handed = next_rw_holders(to, queue, deadlines, readers, writers, at)
    local _, reading_ms, not_holds = holds_at(readers, at)
    if not_holds then return not_holds end
    left = unheard_ms or math.max(redis.call('PTTL', lease), reading_ms)
  end
  return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
end)
