-- include: look_again

-- How often the processes that wait look at a queue together, and how often one of them does, in
-- milliseconds. The client adds up to 50 to the latter.
local LOOK_TOGETHER_MS, LOOK_ALONE_MS = 10, 30

-- Returns after how many milliseconds a process looks at a queue again, with `left` as the time
-- that is left of the lease in the way. If a process that may not publish holds the lock or waits
-- for it, no push tells of its releases. A look of any process hands over for all.
local function look_soon(left, muted, deadlines, at)
  if redis.call('EXISTS', muted) == 0 then return left end
  local processes = redis.call('ZCOUNT', deadlines, '(' .. at, '+inf')
  look_again(deadlines)
  local soon = math.max(processes * LOOK_TOGETHER_MS, LOOK_ALONE_MS)
  return left > 0 and math.min(left, soon) or soon
end
