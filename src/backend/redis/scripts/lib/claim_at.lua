-- Returns the entry at a position of a queue, and its ticket.
local function claim_at(queue, index)
  return unpack(redis.call('ZRANGE', queue, index - 1, index - 1, 'WITHSCORES'))
end

