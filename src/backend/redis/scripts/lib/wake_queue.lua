-- include: publish_to_process

-- Wakes each process that has an entry in a queue. In a cluster all of them listen to the channel
-- of the name.
local function wake_queue(channel, queue)
  if string.find(channel, '}:s', 1, true) then return end
  local waiters = redis.pcall('ZRANGE', queue, 0, -1)
  local told = {}
  for _, waiter in ipairs(waiters) do
    local process = string.sub(waiter, 1, 16)
    if not told[process] then publish_to_process(channel, waiter, 'w') end
    told[process] = true
  end
end
