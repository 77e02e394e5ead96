-- include: kept_ms, first_alive

-- Keeps the queue entries of the process of some claims. Returns 1 if the process had stopped to
-- keep them, or 0; and for each claim 1 if it has an entry in one of the queues, or 0. `others` are
-- keys that last as long as the queues.
local function keep_entries(queues, deadlines, others, claims, at, entry_ms)
  local process, has_lapsed = string.sub(claims[1], 1, 16)
  local dead = redis.call('ZRANGE', deadlines, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if dead[1] then
    has_lapsed = kept_ms(deadlines, process, at) <= 0 and 1 or 0
    redis.call('ZREM', deadlines, unpack(dead))
  end
  -- Lets a full server keep entries: in a script that has written it lets all writes through, and
  -- these need no memory.
  for _, key in ipairs(queues) do redis.call('PEXPIRE', key, entry_ms) end
  for _, key in ipairs(others) do redis.call('PEXPIRE', key, entry_ms) end
  -- Without dead processes, it is added only if the process has no deadline.
  local added = redis.call('ZADD', deadlines, at + entry_ms, process)
  redis.call('PEXPIRE', deadlines, entry_ms)

  local stands = {}
  for index, claim in ipairs(claims) do
    stands[index] = 0
    for _, queue in ipairs(queues) do
      if redis.call('ZSCORE', queue, claim) then
        stands[index] = 1
        break
      end
    end
  end
  return has_lapsed or added, stands
end
