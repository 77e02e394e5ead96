-- Keeps the queue entries of the process of some claims for read-write locks. Hands each lock over
-- if it has no writer.
--
-- KEYS: for each lock its lease, channel, fence, queue, deadlines, readers and writers
--
-- Returns the same as `keep_queued`.
--
-- hands_over, handover_ms: as for `release_rw`; the rest as for `keep_queued`
local hands_over, handover_ms, entry_ms = unpack(ARGV)

-- include: clock_ms, keep_entries, hold_ms, head_waits, lease_at, holds_at, next_rw_holders
-- include: keep_each
local at = now_ms()

-- Returns whether the head of a queue is to wait while there are readers: a writer.
local function has_to_wait(head, ours, deadlines, writers)
  return head and redis.call('ZSCORE', writers, head) and head_waits(head, ours, deadlines, at)
end

return keep_each(7, 4, at, function(keys, fence_ms, claims, looks)
  local lease, channel, fence, queue, deadlines, readers, writers = unpack(keys)
  local head = redis.call('ZRANGE', queue, '0', '0')[1]
  local has_lapsed, stands =
    keep_entries({ queue }, deadlines, { writers }, claims, at, entry_ms, head)
  local told, unheard_ms, handed = 0
  local left = redis.call('PTTL', lease)
  local is_held = left > 0
  if not is_held then
    left = hold_ms(readers, '-1', at)
    is_held = left > 0 and has_to_wait(head, claims[1], deadlines, writers)
  end
  if looks or not is_held then
    local holder, _, lease_ms, foreign = lease_at(lease)
    if foreign then return foreign end
    left = lease_ms
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
  end
  return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
end)
