-- Keeps the queue entries of the process of some claims for read-write locks. Hands each lock over
-- if it has no writer.
--
-- KEYS: for each lock its lease, channel, fence, queue, deadlines, readers, writers and muted
--
-- Returns the same as `keep_queued`.
--
-- hands_over, handover_ms: as for `release_rw`; the rest as for `keep_queued`
local hands_over, handover_ms, entry_ms = unpack(ARGV)

-- include: clock_ms, keep_entries, hold_ms, lease_at, holds_at, next_rw_holders, keep_each
-- include: look_soon
local at = now_ms()
return keep_each(8, 4, at, function(keys, fence_ms, claims, looks)
  local lease, channel, fence, queue, deadlines, readers, writers, muted = unpack(keys)
  local has_lapsed, stands, has_changed =
    keep_entries({ queue }, deadlines, { writers }, claims, at, entry_ms)
  -- A lock that is released is handed over at once. So nothing is to be done while it is held.
  local left = redis.call('PTTL', lease)
  if left <= 0 then left = hold_ms(readers, '-1', at) end
  if left > 0 and not has_changed and not looks then
    return { 0, left, has_lapsed, 0, unpack(stands) }
  end
  local holder, _, lease_ms, foreign = lease_at(lease)
  if foreign then return foreign end
  local told, unheard_ms, handed = 0
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
  if has_changed then left = look_soon(left, muted, deadlines) end
  return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
end)
