-- Lets the scripts that keep entries of this queue see that something is to be known beside it: a
-- deadline has passed. They look for nothing otherwise.
local function look_again(deadlines)
  if redis.call('EXISTS', deadlines) == 1 then redis.pcall('ZADD', deadlines, 0, 'look') end
end
