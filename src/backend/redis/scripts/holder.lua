-- Reads which lease is held, or how many holds a set has.
--
-- Returns {'held', fence or 0, ms left, holders}, or {'free'}.
local key = KEYS[1]
local is_set = ARGV[1] == '1'

-- include: clock_ms, lease_at, holds_at
if is_set then
  local count, left, foreign = holds_at(key, now_ms())
  if foreign then return foreign end
  if count == 0 then return {'free'} end
  return {'held', 0, left, count}
end
local owner, fence, left, foreign = lease_at(key)
if foreign then return foreign end
if not owner then return {'free'} end
return {'held', fence, left, 1}
