-- include: hold

-- Makes a hold that stands last its full time from now. Lets a full server do so: in a script that
-- has written it lets all writes through, and this write needs no memory.
local function hold_again(set, owner, count, at, life_ms)
  redis.call('PEXPIRE', set, math.max(life_ms, redis.call('PTTL', set)))
  hold(set, owner, count, at, life_ms)
end
