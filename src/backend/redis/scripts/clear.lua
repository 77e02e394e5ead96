-- Ends what is held, whoever holds it and whatever stands under its keys, and tells who waits.
-- KEYS 1 channel, 2 ... what is to go
-- Reply 1 something was there, 0 nothing was

local gone = redis.call('DEL', unpack(KEYS, 2))
push(KEYS[1], 'w')
return gone > 0 and 1 or 0
