-- Makes a new hold last this long from now, and the set with it. Removes ended holds.
local function hold(set, owner, count, at, life_ms)
  write_hold(set, owner, count, at + life_ms)
  keep(set, life_ms)
  local ended = redis.call('ZRANGE', set, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if ended[1] then redis.call('ZREM', set, unpack(ended)) end
end

