-- Ends what is held, with its queue, whatever the keys hold, and wakes the waiters. Returns 1 if
-- there was something to remove, or 0.
-- KEYS: the channel, the deadlines of the processes in the queue, the lease, and the other keys
-- ARGV: '1' if there is a queue
local channel, deadlines, lease = unpack(KEYS, 1, 3)

-- Wakes the processes that keep entries in the queue, if their number is not absurd. In a cluster
-- all of them listen to the channel of the name.
if ARGV[1] == '1' and not string.find(channel, '}:s', 1, true) then
  local processes = redis.pcall('ZRANGE', deadlines, 0, 5 * BATCH)
  for _, process in ipairs(processes) do publish_to_process(channel, process, 'w') end
end
publish_to_all(channel, registered_at(lease), 'w')
-- A long queue is freed after the script.
local removed = redis.call('UNLINK', unpack(KEYS, 3))
redis.call('UNLINK', deadlines)
return removed > 0 and 1 or 0
