-- Ends a hold of permits if its owner has it, and the owner's queue entry. Hands permits over to
-- the claims at the head of the queue.
--
-- Returns 1 if it was held or 0 if not, plus the bit of `publish` if it published, plus AGAIN if
-- the script is to be called again.
--
-- hands_over: '1' if permits may be handed over, for `handover_ms`
local permits, channel, queue, deadlines = unpack(KEYS)
local owner, count, limit, hands_over, handover_ms = unpack(ARGV)

-- include: clock_ms, members, held_until
local at = now_ms()
local ends = held_until(permits, owner, at)
local removed = redis.call('ZREM', permits, unpack(members(owner, tonumber(count))))
local was_held = ends and removed == tonumber(count) and 1 or 0
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', deadlines)
  return was_held
end

-- include: next_permits
redis.call('ZREM', queue, owner .. ':' .. count .. ':' .. limit)
local to = { channel = channel, hands_over = hands_over, handover_ms = handover_ms }
return was_held + next_permits(to, queue, deadlines, permits, at, removed)
