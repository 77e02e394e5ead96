-- Returns the first entry in a queue whose process is alive, and after how many milliseconds that
-- process counts as dead. Returns nil if there is no such entry, and AGAIN after a batch of dead
-- entries. Removes the dead entries.
local function first_alive(queue, deadlines, at)
  local dead = {}
  for index = 1, BATCH do
    local claim = claim_at(queue, index)
    local left = claim and deadline_in(deadlines, claim, at)
    if not claim or left > 0 then
      if dead[1] then redis.call('ZREM', queue, unpack(dead)) end
      return claim, left
    end
    dead[index] = claim
  end
  redis.call('ZREM', queue, unpack(dead))
  return AGAIN
end

