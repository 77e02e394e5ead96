-- Ends what is held, with its queue, whatever the keys hold, and wakes the waiters.
--
-- KEYS: the channel, the deadlines of the processes in the queue, and the other keys to remove
-- ARGV: '1' if there is a queue
--
-- Returns 1 if there was something to remove, or 0.
local channel, deadlines = KEYS[1], KEYS[2]
local has_queue = ARGV[1]

-- include: publish, wake_queue
if has_queue == '1' then wake_queue(channel, deadlines) end
local removed = redis.call('DEL', unpack(KEYS, 3))
redis.call('DEL', deadlines)
publish(channel, 'w')
return removed > 0 and 1 or 0
