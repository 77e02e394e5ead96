-- include: publish, process_channels

-- Wakes the waiters for a name in all processes, whose registrations may be lost with the lease. In
-- a cluster all of them listen to the channel of the name.
local function wake_all(channel)
  local start, name = process_channels(channel)
  if name ~= '' then publish(start .. 'all', name .. 'w') end
end
