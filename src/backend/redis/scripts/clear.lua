-- Ends what is held, with its queue, whatever the keys hold, and wakes the waiters.
--
-- KEYS: the channel, then the keys to remove, the first of which may be a queue
-- ARGV: '1' if it is one
--
-- Returns 1 if there was something to remove, or 0.
local channel, queue = KEYS[1], KEYS[2]
local has_queue = ARGV[1]

-- include: publish, wake_queue
if has_queue == '1' then wake_queue(channel, queue) end
local removed = redis.call('DEL', unpack(KEYS, 2))
publish(channel, 'w')
return removed > 0 and 1 or 0
