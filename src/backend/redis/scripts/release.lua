local at_us = now()
local was_held, returned = 0, 0
if units then
  local is_held = held_until(shared, owner, math.floor(at_us / 1000))
  local members = { owner }
  for index = 2, units do members[index] = owner .. ':' .. index end
  returned = redis.call('ZREM', shared, unpack(members))
  was_held = is_held and returned == units and 1 or 0
elseif is_held_by(lease, owner) then
  redis.call('DEL', lease)
  was_held = 1
end

local is_woken = was_held == 1 and wakes_all == '1'
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', deadlines)
  if is_woken then publish(channel, 'w') end
  return was_held + refused
end

redis.call('ZREM', queue, table.concat({ owner, need, limit, lease_ms, label }, ':'))
-- A value that is no lease stays as it is. The next claim reports it.
if redis.call('EXISTS', lease) == 1 then return was_held end
local again, _, is_heard = grant_next(at_us, fence_ms, returned)
if is_woken and not is_heard and again == 0 then publish(channel, 'w') end
return was_held + refused + again
