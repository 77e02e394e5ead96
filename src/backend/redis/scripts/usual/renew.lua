-- Makes leases and holds last their full times from now, and the fences of leases too. Returns
-- for each 1 if renewed, or 0 if the owner does not have it.
-- KEYS: for each the lease and the fence; the lease or the set of holds twice for no fence
-- ARGV: for each its owner, its milliseconds, those of the fence, and its members; 0 for a lease
local renewed, is_done = {}, true

-- The usual case: leases, whose keys hold nothing else.
for one = 1, #KEYS / 2 do
  local key, fence = KEYS[2 * one - 1], KEYS[2 * one]
  local owner, life_ms, fence_ms, members = unpack(ARGV, 4 * one - 3, 4 * one)
  local value = members == '0' and redis.pcall('GET', key)
  if type(value) == 'string' and string.find(value, owner, 1, true) == 1 then
    -- The fence first. A full server lets both through.
    redis.call('PEXPIRE', fence, fence_ms)
    redis.call('PEXPIRE', key, life_ms)
    renewed[one] = 1
  elseif members == '0' and type(value) ~= 'table' then
    renewed[one] = 0
  else
    is_done = false
  end
end
if is_done then return renewed end

