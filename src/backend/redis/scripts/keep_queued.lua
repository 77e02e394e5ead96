-- Keeps the queue entries of the process of some claims for mutexes. Hands each mutex over if it is
-- free.
--
-- KEYS: for each mutex its lease, channel, fence, queue, unordered and deadlines
--
-- Returns for each mutex the bit of `publish` if it published, AGAIN if the script is to be called
-- again for it, or ALONE; the milliseconds until the lease ends, or the entry of a claim that does
-- not hear that the mutex is free; 1 if the process had stopped to keep its entries, or 0; 1 if a
-- claim hears that the mutex is handed to it, or 0; and for each claim 1 if it has an entry, or 0.
-- A script for one mutex may return an error.
--
-- hands_over, handover_ms, turn_ms: as for `release_queued`
-- entry_ms: how long the queue entries are kept; then the mutexes as in `lib/keep_each`
local hands_over, handover_ms, turn_ms, entry_ms = unpack(ARGV)

-- include: clock_ms, keep_entries, lease_at, next_holder, keep_each
local at = now_ms()
return keep_each(6, 5, at, function(keys, fence_ms, claims, looks)
  local lease, channel, fence, queue, unordered, deadlines = unpack(keys)
  local has_lapsed, stands =
    keep_entries({ unordered, queue }, deadlines, {}, claims, at, entry_ms)
  local holder, _, left, foreign = true, 0, redis.call('PTTL', lease)
  if left <= 0 or looks then holder, _, left, foreign = lease_at(lease) end
  if foreign then return foreign end
  local told, unheard_ms, handed = 0
  if not holder then
    local to = {
      lease = lease, fence = fence, channel = channel, turn_ms = turn_ms,
      hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
    }
    told, unheard_ms, handed = next_holder(to, queue, unordered, deadlines, at)
    left = unheard_ms or math.max(redis.call('PTTL', lease), 0)
  end
  return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
end)
