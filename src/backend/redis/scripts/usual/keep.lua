-- Keeps the queue entries of one process for one name, and grants what is free. Returns a list:
-- | REFUSED or 0, plus AGAIN | whether the script is to be called again
-- | ms                       | until the lease in the way ends, or the entry of a claim that fits
-- |                          | and whose process does not receive the push
-- | 1 or 0                   | whether the process had not kept its entries in time
-- | 1 or 0                   | whether a process has received the push of a grant
-- | 1 or 0 for each claim    | whether the claim has an entry
-- entry_ms: how long the queue entries are kept; the claims follow
local lease, shared, _, queue, deadlines = unpack(KEYS)
local fence_ms, entry_ms = ARGV[1], ARGV[2]

local at_us, claims = now(), { unpack(ARGV, 3) }
local at = math.floor(at_us / 1000)
local process = string.sub(claims[1], 1, 16)
local has_lapsed = deadline_in(deadlines, process, at) <= 0 and 1 or 0
local dead = redis.call('ZRANGE', deadlines, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
if dead[1] then redis.call('ZREM', deadlines, unpack(dead)) end

-- The keys last as long as the longest life in the queue. The processes that are dead because the
-- clock was set back have the last deadlines.
local longest_ms = entry_ms
for _ = 1, BATCH do
  local last, score = unpack(redis.call('ZRANGE', deadlines, -1, -1, 'WITHSCORES'))
  local left = last and time_left(score, at)
  if not last or left > 0 then
    longest_ms = math.max(entry_ms, left or 0)
    break
  end
  redis.call('ZREM', deadlines, last)
end
-- This write needs no memory. After it, a full server permits all writes of the script.
redis.call('PEXPIRE', queue, longest_ms)
redis.call('ZADD', deadlines, deadline(at, entry_ms), process)
redis.call('PEXPIRE', deadlines, longest_ms)
local stands = {}
for index, claim in ipairs(claims) do
  stands[index] = redis.call('ZSCORE', queue, claim) and 1 or 0
end

-- The usual case: there is a sole holder.
local holder, _, left = lease_at(lease)
if holder then return { 0, left, has_lapsed, 0, unpack(stands) } end

