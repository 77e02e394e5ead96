-- Makes leases and holds last their full times from now, and fences with them.
--
-- KEYS: the lease or the set of holds of each; then each fence that is to last longer
-- ARGV: the number of leases and holds; for each its owner, its milliseconds, and 0 for a lease or
--   the number of members of a hold; then for each fence the index of its lease, and its
--   milliseconds
--
-- Returns for each lease or hold 1 if renewed, or 0 if the owner does not have it.
local count = tonumber(ARGV[1])
local renewed = {}

-- include: is_held, clock_ms
local function renew_hold(set, owner, life_ms, size)
  local at = now_ms()
  if not is_held(set, owner, size, at) then return 0 end
  -- Lets a full server renew a hold: in a script that has written it lets all writes through, and
  -- this write needs no memory.
  redis.call('PEXPIRE', set, math.max(life_ms, redis.call('PTTL', set)))
  for _, member in ipairs(members(owner, size)) do redis.call('ZADD', set, at + life_ms, member) end
  return 1
end

for one = 1, count do
  local key, owner, life_ms, size = KEYS[one], ARGV[3 * one - 1], ARGV[3 * one], ARGV[3 * one + 1]
  if size ~= '0' then
    renewed[one] = renew_hold(key, owner, tonumber(life_ms), tonumber(size))
  else
    local value = redis.pcall('GET', key)
    renewed[one] = 0
    -- A lease that is kept for its turn (fence 0) is not held yet.
    if type(value) == 'string' and string.find(value, owner, 1, true) == 1
      and string.sub(value, 33, 34) ~= ':0' then
      redis.call('PEXPIRE', key, life_ms)
      renewed[one] = 1
    end
  end
end

for fence = count + 1, #KEYS do
  local at = 3 * count + 2 * (fence - count)
  if renewed[tonumber(ARGV[at])] == 1 then redis.call('PEXPIRE', KEYS[fence], ARGV[at + 1]) end
end
return renewed
