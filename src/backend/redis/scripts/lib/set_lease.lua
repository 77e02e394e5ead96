-- Writes a lease. The fence is text.
local function set_lease(key, owner, fence, lease_ms)
  return redis.call('SET', key, owner .. ':' .. fence, 'PX', lease_ms)
end
