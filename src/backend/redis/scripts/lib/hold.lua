-- include: keep, members

-- Makes a hold last this long from now, and the set with it.
local function hold(set, owner, count, at, life_ms)
  for _, member in ipairs(members(owner, count)) do
    redis.call('ZADD', set, at + life_ms, member)
  end
  keep(set, life_ms)
end
