-- include: publish, process_channels, wake_all

-- Publishes on the channel of a name, and to each process that registered, and ends the
-- registrations. Returns what `publish` returns for the channel of the name, with the number of
-- registered processes added to that of the clients.
--
-- processes: nil if none can have registered
-- sets: how many sets of them the lease had. All backends are woken if one was lost.
-- message: for the channel of the name
-- message_for: returns the message for a process by their number and its turn, from 0; nil if it is
--   the same
local function publish_to_all(channel, processes, sets, message, message_for)
  local waiting = processes and redis.call('SMEMBERS', processes) or {}
  local count = #waiting
  if count > 0 then
    redis.call('DEL', processes)
    local start, name = process_channels(channel)
    for turn, process in ipairs(waiting) do
      local own = message_for and message_for(count, turn - 1) or message
      publish(start .. process, name .. own)
    end
  end
  if sets > math.min(count, 1) then wake_all(channel) end
  local told, heard = publish(channel, message)
  return told, heard + count
end
