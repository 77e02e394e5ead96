-- Keeps the queue entries of the process of some claims for one name, and grants what is free.
-- Returns REFUSED or 0, plus AGAIN if the script is to be called again; the milliseconds until what
-- is in the way ends, or the entry of a claim that does not hear that it fits; 1 if the process had
-- stopped to keep its entries, or 0; 1 if a claim hears that it is granted, or 0; and for each
-- claim 1 if it has an entry, or 0.
-- entry_ms: how long the queue entries are kept; the claims follow
local lease, shared, _, queue, deadlines = unpack(KEYS)
local fence_ms, entry_ms = ARGV[1], ARGV[2]

local at_us, claims = now(), { unpack(ARGV, 3) }
local at = math.floor(at_us / 1000)
local process = string.sub(claims[1], 1, 16)
local has_lapsed = deadline_in(deadlines, process, at) <= 0 and 1 or 0
local dead = redis.call('ZRANGE', deadlines, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
if dead[1] then redis.call('ZREM', deadlines, unpack(dead)) end
keep(queue, entry_ms)
redis.call('ZADD', deadlines, at + entry_ms, process)
keep(deadlines, entry_ms)
local stands = {}
for index, claim in ipairs(claims) do
  stands[index] = redis.call('ZSCORE', queue, claim) and 1 or 0
end

local holder, _, left = lease_at(lease)
local again, unheard_ms, is_heard = 0
if not holder then
  again, unheard_ms, is_heard = grant_next(at_us, fence_ms, 0)
  left = unheard_ms or math.max(redis.call('PTTL', lease), first_end(shared, at))
end
return { refused + again, left, has_lapsed, is_heard and 1 or 0, unpack(stands) }
