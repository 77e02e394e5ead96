-- Ends a lease, whatever the key holds, and returns the ids of those that were registered.
local function end_lease(lease)
  local registered = registered_at(lease)
  redis.call('DEL', lease)
  return registered
end

