-- Lets the next script that keeps entries of this queue look at its head, as after the death of a
-- process: a deadline has passed.
local function look_again(deadlines)
  if redis.call('EXISTS', deadlines) == 1 then redis.pcall('ZADD', deadlines, 0, 'look') end
end
