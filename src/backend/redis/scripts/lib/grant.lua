-- include: fence_text, fence_at, next_fence, set_lease

-- Grants a lease with a new fence, greater than `stored`. Returns the fence. A full server refuses
-- the first write, or none, for in a script that has written it lets all writes through.
local function grant(lease, fence_key, owner, lease_ms, fence_ms, stored)
  local fence = next_fence(fence_at(fence_key), stored or 0)
  local text = fence_text(fence)
  set_lease(lease, owner, text, lease_ms)
  redis.call('SET', fence_key, text, 'PX', fence_ms)
  return fence
end
