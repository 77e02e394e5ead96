-- include: publish, process_channels, wake_all

-- Publishes on the channel of a name, and to each process that registered, and ends the
-- registrations. Returns what `publish` returns for the channel of the name, with the number of
-- registered processes added to that of the clients.
--
-- registered: as in the lease. All backends are woken if a set of it was lost.
-- processes: the set
-- message: for the channel of the name
-- message_for: returns the message for a process by their number and its turn, from 0; nil if it is
--   the same
local function publish_to_all(channel, registered, processes, message, message_for)
  local waiting = {}
  for process in string.gmatch(registered, ',(%x+)') do waiting[#waiting + 1] = process end
  local sets = #string.match(registered, 'r*$')
  if sets > 0 then
    -- The script has done its work. Without the right to read the set, all backends are woken.
    local others = redis.pcall('SMEMBERS', processes)
    redis.call('DEL', processes)
    for _, process in ipairs(others) do waiting[#waiting + 1] = process end
    if sets > math.min(#others, 1) then wake_all(channel) end
  end
  local count = #waiting
  if count > 0 then
    local start, name = process_channels(channel)
    for turn, process in ipairs(waiting) do
      local own = message_for and message_for(count, turn - 1) or message
      publish(start .. process, name .. own)
    end
  end
  local told, heard = publish(channel, message)
  return told, heard + count
end
