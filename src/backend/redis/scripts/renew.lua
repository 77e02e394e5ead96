-- Makes leases and holds last their full time from now. A full server refuses nothing of it: in a script that
-- has written, every write is let through, and the first here is one that needs no memory.
-- KEYS for each: lease or set of holds, fence (of a set, which has none, itself)
-- ARGV for each: token, lease ms, fence life ms, 0 a lease or how many members of a set
-- Reply for each: 1 renewed, 0 not held by this token

local at = milliseconds()
local renewed = {}
for one = 1, #KEYS / 2 do
  local key, token, life = KEYS[2 * one - 1], ARGV[4 * one - 3], ARGV[4 * one - 2]
  local count = tonumber(ARGV[4 * one])
  renewed[one] = 0
  if count > 0 then
    if is_held(key, token, count, at) then
      redis.call('PEXPIRE', key, math.max(life, redis.call('PTTL', key)))
      hold(key, token, count, at, life)
      renewed[one] = 1
    end
  else
    local holder, fence = lease_at(key)
    -- Kept for one who was called (the fence 0) is not held yet.
    if holder == token and fence > 0 then
      redis.call('PEXPIRE', key, life)
      redis.call('PEXPIRE', KEYS[2 * one], ARGV[4 * one - 1])
      renewed[one] = 1
    end
  end
end
return renewed
