-- Ends what is held, with its queue, whatever the keys hold, and wakes the waiters.
--
-- KEYS: the channel, then the keys to remove
--
-- Returns 1 if there was something to remove, or 0.
local channel = KEYS[1]

-- include: publish
local removed = redis.call('DEL', unpack(KEYS, 2))
publish(channel, 'w')
return removed > 0 and 1 or 0
