-- Ends what is held, with its queue, whatever the keys hold, and wakes the waiters.
--
-- KEYS: the channel, the deadlines of the processes in the queue, and the other keys to remove, of
-- which the first is the lease
-- ARGV: '1' if there is a queue; which of the keys has processes that wait for a load, or 0
--
-- Returns 1 if there was something to remove, or 0.
local channel, deadlines, lease = unpack(KEYS, 1, 3)
local has_queue, processes = ARGV[1], KEYS[tonumber(ARGV[2])]

-- include: publish_to_all, registered, wake_queue
if has_queue == '1' then wake_queue(channel, deadlines) end
publish_to_all(channel, processes and registered_at(lease) or '', processes, 'w')
-- A long queue is freed after the script.
local removed = redis.call('UNLINK', unpack(KEYS, 3))
redis.call('UNLINK', deadlines)
return removed > 0 and 1 or 0
