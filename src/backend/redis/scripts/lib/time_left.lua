-- Returns in how many milliseconds a process with this score in `deadlines` counts as dead, or 0 or
-- less. The score is the millisecond of its deadline. The fraction is the life that the process was
-- given, see `lib/deadline.lua`. If more is left than that life and 500 ms, the server's clock was
-- set back, and the process counts as dead.
local function time_left(score, at)
  local left, life_ms = math.floor(score) - at, score % 1 * 204800
  if life_ms > 0 and left > life_ms + 500 then return 0 end
  return left
end

