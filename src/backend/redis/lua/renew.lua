-- Makes leases last their full time from now. Writes nothing that a full server would refuse.
-- KEYS for each lease: lease, fence
-- ARGV for each lease: token, lease ms, fence life ms
-- Reply for each lease: 1 renewed, 0 not held by this token

local renewed = {}
for at = 1, #KEYS / 2 do
  local lease, fence = KEYS[2 * at - 1], KEYS[2 * at]
  if lease_at(lease) == ARGV[3 * at - 2] then
    redis.call('PEXPIRE', lease, ARGV[3 * at - 1])
    redis.call('PEXPIRE', fence, ARGV[3 * at])
    renewed[at] = 1
  else
    renewed[at] = 0
  end
end
return renewed
