-- Ends a mutex if its owner has it, and the owner's queue entry. Hands it over to the claim that
-- has waited longest, or notifies that claim of its turn.
--
-- Returns 1 if it was held or 0 if not, plus the bit of `publish` if it published, plus AGAIN if
-- the script is to be called again.
--
-- queue, unordered: the claims that are held to their order, and the others
-- hands_over: '1' if a lease may be handed over, for `handover_ms`
-- turn_ms: how long the lease is kept for an unordered claim whose turn was notified
-- wakes_all: '1' if there are waiters without a queue, which are woken when it is empty
local lease, channel, fence, queue, unordered, deadlines = unpack(KEYS)
local owner, hands_over, handover_ms, fence_ms, turn_ms, wakes_all = unpack(ARGV)

-- The usual case: the owner has the lease, and no claim waits.
-- include: publish
local value = redis.pcall('GET', lease)
local is_owner = type(value) == 'string'
  and string.match(value, '^(%x+):%d*[1-9]%d*[,%x]*r*$') == owner
local has_queue = redis.call('EXISTS', queue, unordered) > 0
if is_owner and not has_queue then
  redis.call('DEL', lease, deadlines)
  return 1 + (wakes_all == '1' and publish(channel, 'w') or 0)
end

-- include: lease_at, leave, clock_ms, next_holder
local was_held = is_owner and 1 or 0
if is_owner then
  redis.call('DEL', lease)
else
  local holder, _, _, foreign = lease_at(lease)
  leave(queue, unordered, owner)
  -- A value that is no lease stays as it is. The next claim reports it.
  if foreign or holder and holder ~= owner then return 0 end
  -- The lease may be kept for the turn of this claim, which leaves.
  if holder then redis.call('DEL', lease) end
  if holder and not has_queue and wakes_all == '1' then return publish(channel, 'w') end
end

local to = {
  lease = lease, fence = fence, channel = channel, turn_ms = turn_ms,
  hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
}
local told = next_holder(to, queue, unordered, deadlines, now_ms())
if told == 0 and was_held == 1 and wakes_all == '1' then told = publish(channel, 'w') end
return was_held + told
