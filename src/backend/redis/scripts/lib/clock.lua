-- Returns the server's time in microseconds. A Lua number holds it exactly until the year 2255.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
