-- Removes a claim's entry from a queue. Returns whether there was one.
local function leave(queue, deadlines, writers, owner)
  redis.call('ZREM', deadlines, owner)
  if writers then redis.call('ZREM', writers, owner) end
  return redis.call('ZREM', queue, owner) == 1
end
