-- Publishes on the channel of a name, and to each backend that registered.
local function publish_to_all(channel, registered, message)
  local start, name = process_channels(channel)
  for process in string.gmatch(registered, ',(%x+)') do
    publish(start .. process, name .. message)
  end
  publish(channel, message)
end

