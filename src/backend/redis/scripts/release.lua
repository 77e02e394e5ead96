-- Ends a lease if its token has it, and tells who waits: that it is free, or why its load failed.
-- KEYS 1 lease, 2 channel
-- ARGV 1 token, 2 message
-- Reply 1 ended or 0 not held by this token, plus what was told

if lease_at(KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1 + told(push(KEYS[2], ARGV[2]))
