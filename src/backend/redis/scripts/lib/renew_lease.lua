-- Makes the fence, then a lease last their full times from now. A full server lets both through.
local function renew_lease(lease, fence_key, lease_ms, fence_ms)
  redis.call('PEXPIRE', fence_key, fence_ms)
  redis.call('PEXPIRE', lease, lease_ms)
end

