-- Makes a key last at least this long from now. This needs no memory, and a full server lets all
-- writes through in a script that has written.
local function keep(key, life_ms)
  redis.call('PEXPIRE', key, math.max(life_ms, redis.call('PTTL', key)))
end

