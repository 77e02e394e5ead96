-- Sets a latch, unless one stands.
-- KEYS 1 latch
-- ARGV 1 id of the setting, 2 count, 3 ttl ms
-- Reply 1 one stands that was set under this id, 0 another one stands

local left, _, set, _, foreign = latch_at(KEYS[1])
if foreign then return foreign end
if left then return set == ARGV[1] and 1 or 0 end
redis.call('HSET', KEYS[1], 'left', ARGV[2], 'set', ARGV[1], 'ttl', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
