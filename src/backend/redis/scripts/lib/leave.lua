-- Removes a claim's entry from a queue, and from another set. Returns whether there was one.
local function leave(queue, other, claim)
  if other then redis.call('ZREM', other, claim) end
  return redis.call('ZREM', queue, claim) == 1
end
