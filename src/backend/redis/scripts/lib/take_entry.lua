-- include: keep, ticket

-- Takes an entry in a queue, or keeps the one that the claim has. `bits` are those of the ticket.
local function take_entry(queue, deadlines, writers, owner, at, entry_ms, bits)
  -- Lets a full server keep an entry: in a script that has written it lets all writes through, and
  -- this write needs no memory.
  if redis.call('ZSCORE', queue, owner) then redis.call('ZREM', deadlines, owner) end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local behind = last and last - last % TICKET_STEP + TICKET_STEP or 0
  redis.call('ZADD', queue, 'NX', math.max(at * 1000, behind) + bits, owner)
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, owner)
  keep(deadlines, entry_ms)
  if writers then
    redis.call('ZADD', writers, redis.call('ZSCORE', queue, owner), owner)
    keep(writers, entry_ms)
  end
end
