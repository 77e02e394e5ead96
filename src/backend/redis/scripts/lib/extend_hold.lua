-- Makes a hold last its full time from now. Returns whether it stands with all of its members, of
-- which none is revived.
local function extend_hold(set, owner, count, at, life_ms)
  local ends = held_until(set, owner, at)
  if not ends then return false end
  keep(set, life_ms)
  -- A member that has this score already would not count as changed.
  local score = at + life_ms == ends and ends + 1 or at + life_ms
  return write_hold(set, owner, count, score, 'XX', 'CH') == count
end

