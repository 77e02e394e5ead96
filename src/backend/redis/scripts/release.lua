-- Ends what an owner holds, and its queue entry, and grants what is free then.
-- Returns 1 if it was held or 0 if not, plus REFUSED, plus AGAIN if the script is to be called
-- again.
-- claim: see `read_entry` in `lib/queues.lua`
-- wakes_all: '1' if there are waiters without a queue, which are woken when it is empty
local lease, shared, _, queue, deadlines, channel = unpack(KEYS)
local claim, fence_ms, wakes_all = unpack(ARGV)
local has_queue = redis.call('EXISTS', queue) == 1

local owner, units = read_entry(claim)
local was_held, returned = 0, 0
local value = not units and read('GET', lease)
if type(value) == 'string' and string.find(value, owner .. ':', 1, true) == 1 then
  redis.call('DEL', lease)
  was_held = 1
  -- The usual case: no claim waits.
  if not has_queue then
    redis.call('DEL', deadlines)
    if wakes_all == '1' then publish(channel, 'w') end
    return 1 + refused
  end
end

local at = now_ms()
if units then
  local is_held = held_until(shared, owner, at)
  local members = { owner }
  for index = 2, units do members[index] = owner .. ':' .. index end
  returned = redis.call('ZREM', shared, unpack(members))
  was_held = is_held and returned == units and 1 or 0
end
if not has_queue then
  redis.call('DEL', deadlines)
  return was_held
end
redis.call('ZREM', queue, claim)
-- A value that is no lease stays as it is. The next claim reports it.
if redis.call('EXISTS', lease) == 1 then return was_held end
local again, _, is_heard = grant_next(at, fence_ms, returned)
if again == 0 and not is_heard and was_held == 1 and wakes_all == '1' then publish(channel, 'w') end
return was_held + refused + again
