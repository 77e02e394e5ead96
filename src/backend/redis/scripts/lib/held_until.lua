-- include: read

-- Returns the millisecond in which a hold ends, or nil if it has ended or never was. All members of
-- a hold end together: see `write_hold`.
local function held_until(set, owner, at)
  local ends = tonumber(read('ZSCORE', set, owner) or 0)
  return ends > at and ends or nil
end
