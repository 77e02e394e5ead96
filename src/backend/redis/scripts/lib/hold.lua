-- include: batch, keep, members

-- Makes a hold last this long from now, and the set with it. Removes holds that have ended.
local function hold(set, owner, count, at, life_ms)
  for _, member in ipairs(members(owner, count)) do
    redis.call('ZADD', set, at + life_ms, member)
  end
  keep(set, life_ms)
  local ended = redis.call('ZRANGE', set, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if ended[1] then redis.call('ZREM', set, unpack(ended)) end
end
