-- A shared hold of a semaphore has a member of a sorted set for each unit. The first member is the
-- owner. The score of all is the millisecond in which the hold ends.
-- Returns the millisecond in which a hold ends, or nil if it has ended or never was.
local function held_until(set, owner, at)
  local ends = tonumber(read('ZSCORE', set, owner) or 0)
  return ends > at and ends or nil
end

