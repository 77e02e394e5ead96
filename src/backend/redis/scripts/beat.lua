-- Sends a message of a backend to itself, unless this server refuses writes. A replica, or a master
-- that its replicas have left, does not see all changes, and refuses writes.
-- unused: a key that is never there, so that nothing is written
local unused = KEYS[1]
local channel, message = unpack(ARGV)
redis.call('DEL', unused)
return redis.call('PUBLISH', channel, message)
