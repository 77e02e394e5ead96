-- Keeps the queue entries of the process of some claims for one name, and grants what is free.
--
-- Returns the bit of `publish` if it published, or AGAIN if the script is to be called again; the
-- milliseconds until what is in the way ends, or the entry of a claim that does not hear that it
-- fits; 1 if the process had stopped to keep its entries, or 0; 1 if a claim hears that it is
-- granted, or 0; and for each claim 1 if it has an entry, or 0.
--
-- entry_ms: how long the queue entries are kept; the claims follow
local lease, shared, fence, queue, deadlines, channel = unpack(KEYS)
local fence_ms, entry_ms = ARGV[1], ARGV[2]

-- include: clock_ms, keep_entries, lease_at, grant_next
local at = now_ms()
local has_lapsed, stands = keep_entries(queue, deadlines, { unpack(ARGV, 3) }, at, entry_ms)
local holder, _, left, foreign = lease_at(lease)
if foreign then return foreign end
local told, unheard_ms, handed = 0
if not holder then
  local to = {
    lease = lease, shared = shared, fence = fence, queue = queue, deadlines = deadlines,
    channel = channel, fence_ms = fence_ms,
  }
  told, unheard_ms, handed, foreign = grant_next(to, at)
  if foreign then return foreign end
  local range = { '(' .. at, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES' }
  local shared_ends = redis.call('ZRANGE', shared, unpack(range))[2] or at
  left = unheard_ms or math.max(redis.call('PTTL', lease), shared_ends - at, 0)
end
return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
