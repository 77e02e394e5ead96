-- Makes leases and holds last their full times from now.
--
-- KEYS of each: lease or set of holds, fence (of a set, the set itself)
-- ARGV of each: owner, lease ms, fence ms, 0 for a lease or the number of members of a hold
--
-- Returns for each 1 if renewed, or 0 if the owner does not have it.

-- include: clock_ms, lease_at, renew_lease, is_held, hold
local at = now_ms()
local renewed = {}
for one = 1, #KEYS / 2 do
  local key, fence = KEYS[2 * one - 1], KEYS[2 * one]
  local owner, lease_ms, fence_ms, count = unpack(ARGV, 4 * one - 3, 4 * one)
  count = tonumber(count)
  renewed[one] = 0
  if count > 0 then
    if is_held(key, owner, count, at) then
      -- Lets a full server renew a hold: in a script that has written it lets all writes through,
      -- and this write needs no memory.
      redis.call('PEXPIRE', key, math.max(lease_ms, redis.call('PTTL', key)))
      hold(key, owner, count, at, lease_ms)
      renewed[one] = 1
    end
  else
    local holder, held = lease_at(key)
    -- A lease that is kept for its turn (fence 0) is not held yet.
    if holder == owner and held > 0 then
      renew_lease(key, fence, lease_ms, fence_ms)
      renewed[one] = 1
    end
  end
end
return renewed
