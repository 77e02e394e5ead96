-- Ends a lease, whoever holds it and whatever stands under its key, and tells who waits.
-- KEYS 1 lease, 2 channel
-- Reply 1 something was there, 0 nothing was

local there = redis.call('DEL', KEYS[1])
push(KEYS[2], 'w')
return there
