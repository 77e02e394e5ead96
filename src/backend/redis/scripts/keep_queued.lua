-- Keeps the queue entries of the process of some claims for a mutex. Hands the mutex over if it is
-- free.
--
-- Returns the bit of `publish` if it published, or AGAIN if the script is to be called again; the
-- milliseconds until the lease ends; 1 if the process had stopped to keep its entries, or 0; and
-- for each claim 1 if it has an entry, or 0.
--
-- entry_ms: how long the queue entries are kept; the rest as for `release_queued`
local lease, channel, fence, queue, unordered, deadlines = unpack(KEYS)
local hands_over, handover_ms, fence_ms, turn_ms, _, entry_ms = unpack(ARGV)
local claims = { unpack(ARGV, 7) }

-- include: clock_ms, keep_entries, lease_at, next_holder
local at = now_ms()
local has_lapsed, stands = keep_entries({ queue, unordered }, deadlines, {}, claims, at, entry_ms)
local holder, _, left, foreign = lease_at(lease)
if foreign then return foreign end
local told = 0
if not holder then
  local to = {
    lease = lease, fence = fence, channel = channel, turn_ms = turn_ms,
    hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
  }
  told = next_holder(to, queue, unordered, deadlines, at)
  left = math.max(redis.call('PTTL', lease), 0)
end
return { told, left, has_lapsed, unpack(stands) }
