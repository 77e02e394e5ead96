-- Makes a key last at least this long from now.
local function keep(key, life_ms)
  if redis.call('PTTL', key) < tonumber(life_ms) then redis.call('PEXPIRE', key, life_ms) end
end
