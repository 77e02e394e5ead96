-- Grants the leases of several names, all or none: with new fences where they are free, and again
-- to the owners that have them. If one is held, takes an entry in its queue.
--
-- KEYS of each: lease, fence, unordered queue, and deadlines of its entries
-- ARGV of each: owner, lease ms, fence ms, ms for which its queue entry is kept (0: it takes none),
-- how much older the ticket of that is than now, in microseconds
--
-- Returns {'granted', fence of each ...}, or {'held', index from 0, fence, ms left, 1} for the
-- first lease that another owner has.

-- include: lease_at, clock_ms, turn_only, take_entry_or_look, leave, grant, renew_lease
local count = #KEYS / 4
local fences = {}
for one = 1, count do
  local lease, _, queue, deadlines = unpack(KEYS, 4 * one - 3, 4 * one)
  local owner, _, _, entry_ms, head_start = unpack(ARGV, 5 * one - 4, 5 * one)
  local holder, held, left, foreign = lease_at(lease)
  if foreign then return foreign end
  if holder and holder ~= owner then
    if entry_ms ~= '0' then
      left = take_entry_or_look(
        left, queue, deadlines, nil, owner, now_ms(), entry_ms, TURN_ONLY, head_start)
    end
    return {'held', one - 1, held, left, 1}
  end
  -- A lease that is kept for this owner (fence 0) is not granted yet.
  fences[one] = holder and held ~= 0 and held
end

local reply = {'granted'}
for one = 1, count do
  local lease, fence, queue = unpack(KEYS, 4 * one - 3, 4 * one)
  local owner, lease_ms, fence_ms = unpack(ARGV, 5 * one - 4, 5 * one)
  local granted = fences[one]
  if granted then
    renew_lease(lease, fence, lease_ms, fence_ms)
  else
    granted = grant(lease, fence, owner, lease_ms, fence_ms)
  end
  if redis.call('EXISTS', queue) == 1 then leave(queue, nil, owner) end
  reply[one + 1] = granted
end
return reply
