-- Grants the leases of several names, all or none: again to the tokens that have them, and anew, with new
-- fences, where they are free.
-- KEYS for each: lease, fence
-- ARGV for each: token, lease ms, fence life ms
-- Reply {'granted', fence of each ...} | {'held', which (from 0), its fence, ms left, holders}

local count = #KEYS / 2
local fences = {}
for one = 1, count do
  local token, fence, left, foreign = lease_at(KEYS[2 * one - 1])
  if foreign then return foreign end
  if token and token ~= ARGV[3 * one - 2] then return {'held', one - 1, fence, left, 1} end
  fences[one] = token and fence
end

local reply = {'granted'}
for one = 1, count do
  local lease, last = KEYS[2 * one - 1], KEYS[2 * one]
  local fence, life, fence_life = fences[one], ARGV[3 * one - 1], ARGV[3 * one]
  if fence then
    redis.call('PEXPIRE', lease, life)
    redis.call('PEXPIRE', last, fence_life)
  else
    -- A full server refuses the first of these writes, or none.
    fence = next_fence(fence_at(last), 0)
    redis.call('SET', lease, ARGV[3 * one - 2] .. ':' .. digits(fence), 'PX', life)
    redis.call('SET', last, digits(fence), 'PX', fence_life)
  end
  reply[one + 1] = fence
end
return reply
