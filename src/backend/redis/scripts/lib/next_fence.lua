-- include: clock

-- Returns a fence that is greater than the last fence, the fence of the stored entry, and each
-- fence that was taken from the clock.
local function next_fence(last, stored)
  return math.max(now(), last + 1, stored + 1)
end
