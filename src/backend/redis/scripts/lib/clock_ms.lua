-- include: clock

-- Returns the server's time in milliseconds.
local function now_ms()
  return math.floor(now() / 1000)
end
