-- Keeps the queue entries of the process of some claims for permits. Hands permits over that fit.
--
-- Returns the same as `keep_queued`. The milliseconds are those until the first hold ends.
--
-- entry_ms: how long the queue entries are kept; the rest as for `release_permit`
-- claims: `owner:count:limit` of each
local permits, channel, queue, deadlines = unpack(KEYS)
local hands_over, handover_ms, entry_ms = unpack(ARGV)
local claims = { unpack(ARGV, 4) }

-- include: clock_ms, keep_entries, holds_at, next_permits
local at = now_ms()
local has_lapsed, stands = keep_entries({ queue }, deadlines, {}, claims, at, entry_ms)
local _, _, foreign = holds_at(permits, at)
if foreign then return foreign end
local to = { channel = channel, hands_over = hands_over, handover_ms = handover_ms }
local told = next_permits(to, queue, deadlines, permits, at)
local first = redis.call('ZRANGE', permits, '(' .. at, '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
local left = first and redis.call('ZSCORE', permits, first) - at or 0
return { told, left, has_lapsed, unpack(stands) }
