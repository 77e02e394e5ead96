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
