-- Makes leases and holds last their full times from now, and fences with them. Returns for each
-- lease or hold 1 if renewed, or 0 if the owner does not have it.
--
-- KEYS: the lease or the set of holds of each; then each fence that is to last longer
-- ARGV: the number of leases and holds; for each its owner, its milliseconds, and 0 for a lease or
--   the number of members of a hold; then for each fence the index of its lease, and its
--   milliseconds
local count, renewed, has_holds, unread = tonumber(ARGV[1]), {}, false, nil

for one = 1, count do
  renewed[one] = 0
  if ARGV[3 * one + 1] == '0' then
    local value, owner = redis.pcall('GET', KEYS[one]), ARGV[3 * one - 1]
    if type(value) == 'string' and string.find(value, owner, 1, true) == 1 then
      redis.call('PEXPIRE', KEYS[one], ARGV[3 * one])
      renewed[one] = 1
    elseif type(value) == 'table' then
      unread = KEYS[one]
    end
  else
    has_holds = true
  end
end
for fence = count + 1, #KEYS do
  local at = 3 * count + 2 * (fence - count)
  if renewed[tonumber(ARGV[at])] == 1 then redis.call('PEXPIRE', KEYS[fence], ARGV[at + 1]) end
end
if not has_holds and not unread then return renewed end

-- Fails if an ACL forbade it, which says nothing of the lease.
if unread then read('GET', unread) end
local at = now_ms()
for one = 1, count do
  local owner, life_ms, size = unpack(ARGV, 3 * one - 1, 3 * one + 1)
  size = tonumber(size)
  if size > 0 and extend_hold(KEYS[one], owner, size, at, life_ms) then renewed[one] = 1 end
end
return renewed
