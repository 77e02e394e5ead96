-- Ends a hold of permits if its token has it, and tells who waits.
-- KEYS 1 permits, 2 channel
-- ARGV 1 token, 2 how many
-- Reply 1 ended or 0 not held by this token, plus what was told

local count = tonumber(ARGV[2])
local had = is_held(KEYS[1], ARGV[1], count, milliseconds())
local ended = redis.call('ZREM', KEYS[1], unpack(members(ARGV[1], count)))
return (had and 1 or 0) + (ended > 0 and told(push(KEYS[2], 'w')) or 0)
