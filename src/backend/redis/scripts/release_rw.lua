-- Ends the lease of a writer or the hold of a reader if its owner has it, and the owner's queue
-- entry. Hands the lock over to those at the head of the queue: one writer, or readers.
--
-- Returns 1 if it was held or 0 if not, plus the bit of `publish` if it published, plus AGAIN if
-- the script is to be called again.
--
-- hands_over: '1' if a lease may be handed over, for `handover_ms`
local lease, channel, fence, queue, deadlines, readers, writers = unpack(KEYS)
local owner, hands_over, handover_ms, fence_ms = unpack(ARGV)

-- include: clock_ms, lease_at, held_until, leave
local at = now_ms()
local holder, held, _, foreign = lease_at(lease)
local was_held = 0
if holder == owner then
  redis.call('DEL', lease)
  if held > 0 then was_held = 1 end
elseif held_until(readers, owner, at) then
  redis.call('ZREM', readers, owner)
  was_held = 1
end
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', deadlines)
  return was_held
end

-- include: next_rw_holders
leave(queue, writers, owner)
-- A value that is no lease stays as it is. The next claim reports it.
if foreign or holder and holder ~= owner then return was_held end
local to = {
  lease = lease, fence = fence, channel = channel,
  hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
}
return was_held + next_rw_holders(to, queue, deadlines, readers, writers, at)
