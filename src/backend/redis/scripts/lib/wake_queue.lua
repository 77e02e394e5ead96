-- include: batch, publish_to_process

-- Wakes the processes that keep entries in a queue, if their number is not absurd. In a cluster all
-- of them listen to the channel of the name.
local function wake_queue(channel, deadlines)
  if string.find(channel, '}:s', 1, true) then return end
  local processes = redis.pcall('ZRANGE', deadlines, 0, 5 * BATCH)
  for _, process in ipairs(processes) do publish_to_process(channel, process, 'w') end
end
