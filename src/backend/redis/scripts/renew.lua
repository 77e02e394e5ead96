-- Makes leases and holds last their full times from now, and fences with them. Returns for each
-- lease or hold 1 if renewed, or 0 if the owner does not have it.
-- KEYS: the lease or the set of holds of each; then each fence that is to last longer
-- ARGV: the number of leases and holds; for each its owner, its milliseconds, and 0 for a lease or
--   the number of members of a hold; then for each fence the index of its lease, and its
--   milliseconds
local count, renewed, at = tonumber(ARGV[1]), {}, nil

for one = 1, count do
  local owner, life_ms, size = unpack(ARGV, 3 * one - 1, 3 * one + 1)
  if size ~= '0' then
    at = at or now_ms()
    renewed[one] = extend_hold(KEYS[one], owner, tonumber(size), at, life_ms) and 1 or 0
  elseif string.find(read('GET', KEYS[one]) or '', owner, 1, true) == 1 then
    redis.call('PEXPIRE', KEYS[one], life_ms)
    renewed[one] = 1
  else
    renewed[one] = 0
  end
end
for fence = count + 1, #KEYS do
  local index, life_ms = unpack(ARGV, 2 * fence + count, 2 * fence + count + 1)
  if renewed[tonumber(index)] == 1 then redis.call('PEXPIRE', KEYS[fence], life_ms) end
end
return renewed
