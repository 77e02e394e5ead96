-- include: keep, ticket, clock

-- Takes an entry in a queue, or keeps the one that the claim has, and the other entries of its
-- process. `bits` are those of the ticket. `other` is another set that the claim is to be in.
local function take_entry(queue, deadlines, other, claim, at, entry_ms, bits)
  local process = string.sub(claim, 1, 16)
  -- Lets a full server keep an entry: in a script that has written it lets all writes through, and
  -- this write needs no memory.
  if redis.call('ZSCORE', queue, claim) then redis.call('ZREM', deadlines, process) end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local behind = last and last - last % TICKET_STEP + TICKET_STEP or 0
  local time = now()
  local ticket = math.max(time - time % TICKET_STEP, behind)
  redis.call('ZADD', queue, 'NX', ticket + bits, claim)
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  keep(deadlines, entry_ms)
  if other then
    redis.call('ZADD', other, redis.call('ZSCORE', queue, claim), claim)
    keep(other, entry_ms)
  end
end
