-- Returns the score in `deadlines` of a process that counts as alive for so long: the millisecond
-- of its deadline and, in the fraction, its life as 2048ths of 204.8 s. A longer life is not told.
local function deadline(at, life_ms)
  local units = math.ceil(life_ms / 100)
  return at + life_ms + (units < 2048 and units / 2048 or 0)
end

