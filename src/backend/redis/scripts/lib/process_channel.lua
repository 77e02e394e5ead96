-- Returns the channel of one waiter's process. If each process has a channel of its own (`own` is
-- '1'), it ends with the first half of the waiter's id.
local function process_channel(channel, own, waiter)
  if own == '1' then return channel .. ':' .. string.sub(waiter, 1, 16) end
  return channel
end
