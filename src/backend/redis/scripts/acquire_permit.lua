-- Grants `count` permits, while at most `limit` are out; or again to the owner that has them.
--
-- Returns 0 if granted; {'held', 0, ms until enough permits may be back, permits out} if not.
local permits = KEYS[1]
local owner, lease_ms = ARGV[1], ARGV[2]
local limit, count = tonumber(ARGV[3]), tonumber(ARGV[4])

-- include: clock_ms, holds_at, is_held, hold
local at = now_ms()
local out, _, foreign = holds_at(permits, at)
if foreign then return foreign end

if is_held(permits, owner, count, at) or out + count <= limit then
  hold(permits, owner, count, at, lease_ms)
  return 0
end
local needed = math.min(out, out + count - limit) - 1
local ends = redis.call('ZRANGE', permits, needed, needed, 'WITHSCORES')[2]
return {'held', 0, ends and tonumber(ends) - at or 0, out}
