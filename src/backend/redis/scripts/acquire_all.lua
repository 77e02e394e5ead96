-- Grants the leases of several names, all or none: again to the tokens that have them, and anew, with new
-- fences, where they are free. Where one is in the way, a place is taken in its queue.
-- KEYS for each: lease, fence, queue, deadlines of its places
-- ARGV for each: token, lease ms, fence life ms, ms for which a place is kept (0: none is taken)
-- Reply {'granted', fence of each ...} | {'held', which (from 0), its fence, ms left, holders}

local count = #KEYS / 4
local fences = {}
for one = 1, count do
  local lease, _, queue, deadlines = unpack(KEYS, 4 * one - 3, 4 * one)
  local mine, _, _, kept = unpack(ARGV, 4 * one - 3, 4 * one)
  local token, fence, left, foreign = lease_at(lease)
  if foreign then return foreign end
  if token and token ~= mine then
    -- A full server refuses the place; it is only for being called.
    if kept ~= '0' then pcall(take_place, queue, deadlines, nil, mine, milliseconds(), kept, 3) end
    return {'held', one - 1, fence, left, 1}
  end
  -- Kept for one who was called (the fence 0) is not granted yet.
  fences[one] = token and fence ~= 0 and fence
end

local reply = {'granted'}
for one = 1, count do
  local lease, last, queue, deadlines = unpack(KEYS, 4 * one - 3, 4 * one)
  local mine, life, fence_life = unpack(ARGV, 4 * one - 3, 4 * one)
  local fence = fences[one]
  if fence then
    redis.call('PEXPIRE', lease, life)
    redis.call('PEXPIRE', last, fence_life)
  else
    -- A full server refuses the first of these writes, or none.
    fence = next_fence(fence_at(last), 0)
    redis.call('SET', lease, mine .. ':' .. digits(fence), 'PX', life)
    redis.call('SET', last, digits(fence), 'PX', fence_life)
  end
  if redis.call('EXISTS', queue) == 1 then leave(queue, deadlines, nil, mine) end
  reply[one + 1] = fence
end
return reply
