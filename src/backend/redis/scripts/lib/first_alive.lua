-- include: kept_ms, batch, again

-- How many heads of queues this script has looked at.
local heads_seen = 0

-- Returns the first claim in a queue whose process keeps its entries, the milliseconds until that
-- ends, and its ticket; or nil. Removes the entries before it, from `other` as well, which is
-- another set with some of the claims. Returns AGAIN after a batch without such a claim.
local function first_alive(queue, deadlines, other, at)
  local heads = redis.call('ZRANGE', queue, '0', '0', 'WITHSCORES')
  heads_seen = heads_seen + 1
  if not heads[1] then return nil end
  local left = kept_ms(deadlines, heads[1], at)
  if left > 0 then return heads[1], left, tonumber(heads[2]) end

  local dead, alive = {}, nil
  heads = redis.call('ZRANGE', queue, 0, BATCH - 1, 'WITHSCORES')
  for index = 1, #heads, 2 do
    left = kept_ms(deadlines, heads[index], at)
    if left > 0 then
      alive = index
      break
    end
    dead[#dead + 1] = heads[index]
  end
  heads_seen = heads_seen + #dead
  redis.call('ZREM', queue, unpack(dead))
  if other then redis.call('ZREM', other, unpack(dead)) end
  if alive then return heads[alive], left, tonumber(heads[alive + 1]) end
  return #dead == BATCH and AGAIN or nil
end
