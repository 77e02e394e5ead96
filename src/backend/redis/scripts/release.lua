-- Ends a lease if its owner has it, and publishes that it is free, or why its load failed.
--
-- Returns 1 plus the bit of `publish` if it ended, or 0 if the owner does not have it.
--
-- processes: the processes that wait for the load
local lease, channel, processes = unpack(KEYS)
local owner, message = unpack(ARGV)

-- include: lease_at, publish_to_all
if lease_at(lease) ~= owner then return 0 end
redis.call('DEL', lease)
return 1 + publish_to_all(channel, processes, message)
