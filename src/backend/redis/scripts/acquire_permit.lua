-- Grants permits, as long as no more than the limit are out.
-- KEYS 1 permits
-- ARGV 1 token, 2 lease ms, 3 limit, 4 how many
-- Reply 0, granted | {'held', 0, ms until enough may be back, permits out}

local at = milliseconds()
local count, limit = tonumber(ARGV[4]), tonumber(ARGV[3])
local out, _, foreign = holds_at(KEYS[1], at)
if foreign then return foreign end

if is_held(KEYS[1], ARGV[1], count, at) or out + count <= limit then
  hold(KEYS[1], ARGV[1], count, at, ARGV[2])
  return 0
end
local needed = math.min(out, out + count - limit) - 1
local ends = redis.call('ZRANGE', KEYS[1], needed, needed, 'WITHSCORES')[2]
return {'held', 0, ends and tonumber(ends) - at or 0, out}
