-- include: kept_ms, first_alive

-- The time and the end of the entries. A command makes a text of a number each time.
local at_text, ends_text

-- Keeps the queue entries of the process of some claims. Returns 1 if the process had stopped to
-- keep them, or 0; and for each claim 1 if it has an entry in one of the queues, or 0.
--
-- others: keys that last as long as the queues
-- head: a claim that has an entry, or nil
local function keep_entries(queues, deadlines, others, claims, at, entry_ms, head)
  at_text = at_text or string.format('%.0f', at)
  ends_text = ends_text or string.format('%.0f', at + entry_ms)
  local process, has_lapsed = string.sub(claims[1], 1, 16)
  local has_dead = redis.call('ZCOUNT', deadlines, '-inf', at_text) > 0
  if has_dead then
    has_lapsed = kept_ms(deadlines, process, at) <= 0 and 1 or 0
    local dead = redis.call('ZRANGE', deadlines, '-inf', at_text, 'BYSCORE', 'LIMIT', 0, BATCH)
    redis.call('ZREM', deadlines, unpack(dead))
  end
  -- Lets a full server keep entries: in a script that has written it lets all writes through, and
  -- these need no memory.
  for _, key in ipairs(queues) do redis.call('PEXPIRE', key, entry_ms) end
  for _, key in ipairs(others) do redis.call('PEXPIRE', key, entry_ms) end
  -- Without dead processes, it is added only if the process has no deadline.
  local added = redis.call('ZADD', deadlines, ends_text, process)
  redis.call('PEXPIRE', deadlines, entry_ms)

  local stands = {}
  for index, claim in ipairs(claims) do
    stands[index] = claim == head and 1 or 0
    for _, queue in ipairs(queues) do
      if stands[index] == 1 then break end
      if redis.call('ZSCORE', queue, claim) then stands[index] = 1 end
    end
  end
  return has_lapsed or added, stands
end
