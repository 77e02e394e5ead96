-- Converts what one owner holds into the hold of another owner: a sole hold into another one or
-- into shared units, or the only shared units into a sole hold.
-- Returns the fence if granted, which is 0 for shared units; nil if not; {'again'} if granted, and
-- the script is to be called again.
-- from_units: the units that are converted; '0' for a sole hold
-- claim: of the new owner, see `read_entry` in `lib/queues.lua`
local lease, shared, fence, queue = unpack(KEYS)
local claim, fence_ms, from, from_units = unpack(ARGV)

local to, units, _, lease_ms, label = read_entry(claim)
local at = now_ms()
local holder, held = lease_at(lease)
local out = (units or from_units ~= '0') and holds_at(shared, at)

local is_done = holder == to or units and held_until(shared, to, at)
local is_held = holder == from
if from_units ~= '0' then
  is_held = not holder and out == tonumber(from_units) and held_until(shared, from, at)
end
if not is_done then
  if not is_held then return nil end
  if from_units ~= '0' then redis.call('DEL', shared) end
  -- The new owner may have waited.
  redis.call('ZREM', queue, claim)
end
if not units then
  return is_done and held or grant(lease, fence, to, lease_ms, fence_ms, 0, label)
end
if not is_done then
  redis.call('DEL', lease)
  hold(shared, to, units, at, lease_ms)
elseif holder then
  return 0
end
return grant_next(at, fence_ms, 0) == AGAIN and { 'again' } or 0
