-- include: held_until, write_hold

-- Makes a hold that stands last its full time from now. Returns whether it stands. A hold without
-- all of its members does not stand, and none of them is revived.
local function extend_hold(set, owner, count, at, life_ms)
  local ends, score = held_until(set, owner, at), at + life_ms
  if not ends then return false end
  -- A member that has this score already would not count as changed.
  if score == ends then score = score + 1 end
  -- Lets a full server do so: in a script that has written it lets all writes through, and this
  -- write needs no memory.
  redis.call('PEXPIRE', set, math.max(life_ms, redis.call('PTTL', set)))
  if write_hold(set, owner, count, score, 'XX', 'CH') == count then return true end
  write_hold(set, owner, count, ends, 'XX')
  return false
end
