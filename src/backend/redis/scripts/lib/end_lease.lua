-- include: registered

-- Ends a lease, whatever the key holds. Returns which processes were registered, as
-- `registered_at` does.
local function end_lease(lease)
  local registered = registered_at(lease)
  redis.call('DEL', lease)
  return registered
end
