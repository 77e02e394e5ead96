-- Lets the next script that keeps entries of this queue look for a process that may not publish:
-- it does so if a deadline has passed.
local function look_again(deadlines)
  if redis.call('EXISTS', deadlines) == 1 then redis.pcall('ZADD', deadlines, 0, 'look') end
end
