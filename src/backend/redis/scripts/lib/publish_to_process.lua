-- Publishes a message about a name to the process of one of its waiters, by the id of that.
local function publish_to_process(channel, waiter, message)
  local start, name = process_channels(channel)
  return publish(start .. string.sub(waiter, 1, 16), name .. message)
end

