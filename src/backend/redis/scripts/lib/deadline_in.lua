-- Returns in how many milliseconds the process of a claim counts as dead, or 0 or less. It has one
-- deadline for all of its entries in a queue.
local function deadline_in(deadlines, claim, at)
  return time_left(redis.call('ZSCORE', deadlines, string.sub(claim, 1, 16)) or 0, at)
end

