local at_us = now()
local at = math.floor(at_us / 1000)
local holder, held = lease_at(lease)
local out = (units or from_units ~= '0') and count_holds(shared, at)

local is_done = holder == owner or units and held_until(shared, owner, at)
local is_held = holder == from
if from_units ~= '0' then
  is_held = not holder and out == tonumber(from_units) and held_until(shared, from, at)
end
if not is_done then
  if not is_held then return nil end
  if from_units ~= '0' then redis.call('DEL', shared) end
  -- The new owner may have waited.
  redis.call('ZREM', queue, entry)
end
if not units then
  return is_done and held
    or tonumber(grant(lease, fence, owner, lease_ms, fence_ms, at_us, 0, label))
end
if not is_done then
  redis.call('DEL', lease)
  hold(shared, owner, units, at, lease_ms)
elseif holder then
  return 0
end
return grant_next(at_us, fence_ms, 0) == AGAIN and { 'again' } or 0
