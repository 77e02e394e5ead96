-- Returns the milliseconds for which a claim's process still keeps its queue entries; zero or less
-- if it has stopped to. A process has one deadline for all of its entries in a queue.
local function kept_ms(deadlines, claim, at)
  return (redis.call('ZSCORE', deadlines, string.sub(claim, 1, 16)) or 0) - at
end
