-- include: keep, ticket, clock

-- Takes an entry in a queue, or keeps the one that the claim has, and the other entries of its
-- process. `bits` are those of the ticket, which is `head_start` microseconds older than now.
-- `other` is another set that the claim is to be in.
local function take_entry(queue, deadlines, other, claim, at, entry_ms, bits, head_start)
  local process = string.sub(claim, 1, 16)
  -- Lets a full server keep an entry: in a script that has written it lets all writes through, and
  -- this write needs no memory.
  if redis.call('ZSCORE', queue, claim) then redis.call('ZREM', deadlines, process) end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local behind = last and last - last % TICKET_STEP + TICKET_STEP or 0
  local time = now() - head_start
  local ticket = time - time % TICKET_STEP
  if head_start == '0' then ticket = math.max(ticket, behind) end
  redis.call('ZADD', queue, 'NX', ticket + bits, claim)
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  keep(deadlines, entry_ms)
  if other then
    redis.call('ZADD', other, redis.call('ZSCORE', queue, claim), claim)
    keep(other, entry_ms)
  end
end
