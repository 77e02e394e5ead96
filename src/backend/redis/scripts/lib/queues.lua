-- The waiters of a semaphore.

-- part: read_entry
-- An entry of a queue is the owner of a claim, its need, its limit, the milliseconds of its lease,
-- and the label of its process. The need is a number of shared units, of which at most `limit` may
-- be out; or a sole hold: `x`, and the entry is dropped if its process does not hear of its grant,
-- or `f`, and it stays.
--
-- Returns the owner, the units or nil, the limit, the milliseconds, the label, and the need.
local function read_entry(claim)
  local owner, need, limit, lease_ms, label =
    string.match(claim, '^(%x+):(%w+):(%d+):(%d+):(.*)$')
  return owner, tonumber(need), limit, lease_ms, label, need
end

-- part: take_entry
-- include: keep, kept_ms, clock, out_of_memory

-- How soon a claim looks again that has no entry, in milliseconds.
local LOOK_MS = 100

-- Takes an entry in a queue, or keeps the one that the claim has, and the other entries of its
-- process. Its score is its ticket: the microsecond in which it was taken, or the next number
-- behind the last ticket of the queue.
--
-- A full server refuses the entry, and the claim does without it. No push tells it of a release
-- then, so it is to look again soon. `left` are the milliseconds after which the claim looks if it
-- has the entry. Returns those after which it is to look.
local function take_entry(queue, deadlines, claim, at, entry_ms, left)
  local process = string.sub(claim, 1, 16)
  if redis.call('ZSCORE', queue, claim) then
    -- Lets a full server keep an entry: in a script that has written it lets all writes through,
    -- and this write needs no memory. An entry that its process had stopped to keep is taken anew.
    local is_kept = kept_ms(deadlines, claim, at) > 0
    redis.call('ZREM', is_kept and deadlines or queue, is_kept and process or claim)
  end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
  local add = { 'ZADD', queue, 'NX', math.max(now(), last + 1), claim }
  local refusal = redis.pcall(unpack(add))
  if type(refusal) == 'table' and string.find(refusal.err, OUT_OF_MEMORY, 1, true) then
    return math.min(left, LOOK_MS)
  end
  -- Fails if it was refused for another reason, such as by an ACL.
  if type(refusal) == 'table' then redis.call(unpack(add)) end
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  keep(deadlines, entry_ms)
  return left
end

-- part: first_alive
-- include: kept_ms, batch, again

-- Returns the first claim in a queue whose process keeps its entries, the milliseconds until that
-- ends, and its ticket; or nil. Removes the entries before it. Returns AGAIN after a batch without
-- such a claim.
local function first_alive(queue, deadlines, at)
  local heads, dead = redis.call('ZRANGE', queue, '0', '0', 'WITHSCORES'), {}
  for index = 1, BATCH do
    -- Most heads are alive, and the others are read together.
    if index == 2 then heads = redis.call('ZRANGE', queue, 0, BATCH - 1, 'WITHSCORES') end
    local claim, ticket = heads[2 * index - 1], heads[2 * index]
    local left = claim and kept_ms(deadlines, claim, at)
    if not claim or left > 0 then
      if dead[1] then redis.call('ZREM', queue, unpack(dead)) end
      return claim, left, tonumber(ticket)
    end
    dead[index] = claim
  end
  redis.call('ZREM', queue, unpack(dead))
  return AGAIN
end

-- part: kept_ms
-- Returns the milliseconds for which a claim's process still keeps its queue entries; zero or less
-- if it has stopped to. A process has one deadline for all of its entries in a queue.
local function kept_ms(deadlines, claim, at)
  return (redis.call('ZSCORE', deadlines, string.sub(claim, 1, 16)) or 0) - at
end

-- part: keep_entries
-- include: kept_ms, batch

-- Keeps the queue entries of the process of some claims. Returns 1 if the process had stopped to
-- keep them, or 0; and for each claim 1 if it has an entry, or 0.
local function keep_entries(queue, deadlines, claims, at, entry_ms)
  local process = string.sub(claims[1], 1, 16)
  local has_lapsed = kept_ms(deadlines, process, at) <= 0 and 1 or 0
  local dead = redis.call('ZRANGE', deadlines, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if dead[1] then redis.call('ZREM', deadlines, unpack(dead)) end
  -- Lets a full server keep entries: in a script that has written it lets all writes through, and
  -- this needs no memory.
  redis.call('PEXPIRE', queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  redis.call('PEXPIRE', deadlines, entry_ms)
  local stands = {}
  for index, claim in ipairs(claims) do
    stands[index] = redis.call('ZSCORE', queue, claim) and 1 or 0
  end
  return has_lapsed, stands
end
