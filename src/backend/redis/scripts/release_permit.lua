-- Ends a hold of permits if its owner has it, and wakes the waiters.
--
-- Returns 1 if it was held or 0 if not, plus the bit of `publish` if it published.
local permits, channel = KEYS[1], KEYS[2]
local owner, count = ARGV[1], tonumber(ARGV[2])

-- include: clock_ms, members, is_held, publish
local was_held = is_held(permits, owner, count, now_ms())
local removed = redis.call('ZREM', permits, unpack(members(owner, count)))
return (was_held and 1 or 0) + (removed > 0 and publish(channel, 'w') or 0)
