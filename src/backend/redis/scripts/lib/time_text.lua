-- Returns the server's time in microseconds as text: 16 digits.
local function time_text()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6)
end
