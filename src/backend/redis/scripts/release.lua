-- Ends what an owner holds, and its queue entry, and grants what is free then.
-- Returns 1 if it was held or 0 if not, plus REFUSED, plus AGAIN if the script is to be called
-- again.
-- claim: see `read_entry` in `lib/queues.lua`
-- wakes_all: '1' if there are waiters without a queue, which are woken when it is empty
local lease, shared, _, queue, deadlines, channel = unpack(KEYS)
local claim, fence_ms, wakes_all = unpack(ARGV)

local owner, units = read_entry(claim)
local was_held, returned = 0, 0
if units then
  local is_held = held_until(shared, owner, now_ms())
  local members = { owner }
  for index = 2, units do members[index] = owner .. ':' .. index end
  returned = redis.call('ZREM', shared, unpack(members))
  was_held = is_held and returned == units and 1 or 0
elseif is_held_by(lease, owner) then
  redis.call('DEL', lease)
  was_held = 1
end

-- The usual case: no claim waits.
local is_woken = was_held == 1 and wakes_all == '1'
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', deadlines)
  if is_woken then publish(channel, 'w') end
  return was_held + refused
end

redis.call('ZREM', queue, claim)
-- A value that is no lease stays as it is. The next claim reports it.
if redis.call('EXISTS', lease) == 1 then return was_held end
local again, _, is_heard = grant_next(now_ms(), fence_ms, returned)
if is_woken and not is_heard and again == 0 then publish(channel, 'w') end
return was_held + refused + again
