-- Ends the registrations of the processes that wait for a load. Returns their ids.
local function end_registrations(processes)
  local waiting = redis.call('SMEMBERS', processes)
  if #waiting > 0 then redis.call('DEL', processes) end
  return waiting
end
