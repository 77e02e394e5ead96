-- Makes leases and holds last their full times from now, and the fences of leases too. Returns
-- for each 1 if renewed, or 0 if the owner does not have it.
-- KEYS: for each the lease and the fence; the lease or the set of holds twice for no fence
-- ARGV: for each its owner, its milliseconds, those of the fence, and its members; 0 for a lease
local renewed, at = {}, nil
for one = 1, #KEYS / 2 do
  local key, fence = KEYS[2 * one - 1], KEYS[2 * one]
  local owner, life_ms, fence_ms, size = unpack(ARGV, 4 * one - 3, 4 * one)
  if size ~= '0' then
    at = at or now_ms()
    renewed[one] = extend_hold(key, owner, tonumber(size), at, life_ms) and 1 or 0
  else
    renewed[one] = is_held_by(key, owner) and 1 or 0
    if renewed[one] == 1 then renew_lease(key, fence, life_ms, fence_ms) end
  end
end
return renewed
