-- Ends a hold of permits if its token has it, and tells who waits.
-- KEYS 1 permits, 2 channel
-- ARGV 1 token, 2 how many
-- Reply 1 ended, 0 not held by this token

local count = tonumber(ARGV[2])
local had = is_held(KEYS[1], ARGV[1], count, milliseconds())
local ended = redis.call('ZREM', KEYS[1], unpack(members(ARGV[1], count)))
if ended > 0 then push(KEYS[2], 'w') end
return had and 1 or 0
