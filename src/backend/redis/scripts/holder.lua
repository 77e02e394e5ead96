-- Says who holds a lease, or how many share it.
-- KEYS 1 lease, or set of holds
-- ARGV 1 0 a lease, 1 a set
-- Reply {'held', fence or 0, ms left, holders} | {'free'}

if ARGV[1] == '1' then
  local at = milliseconds()
  local count, left, foreign = holds_at(KEYS[1], at)
  if foreign then return foreign end
  if count == 0 then return {'free'} end
  return {'held', 0, left, count}
end
local token, fence, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end
if not token then return {'free'} end
return {'held', fence, left, 1}
