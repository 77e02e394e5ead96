-- Ends a lease or a reader's hold if its token has it, and its place in the queue, and tells whose turn it is.
-- KEYS 1 lease, 2 channel, 3 queue, 4 deadlines of its places (in order only: 5 fence; read-write: 6 readers,
--      7 writers in the queue)
-- ARGV 1 token, 2 1: each process has a channel of its own, so that the others need not wake,
--      3 ms for which the lease is kept for who is called, who loses the place, so that one that died is called
--      once; and one whom nobody hears is passed over
--      In order only: 4 ms for which the first in the queue is granted the lease at most (0: he is told to ask
--      for it), 5 fence life ms
-- Reply 1 ended or 0 not held by this token, plus what was told

local had = 0
local token, held, _, foreign = lease_at(KEYS[1])
if token == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if held > 0 then had = 1 end
else
  local placed = leave(KEYS[3], KEYS[4], KEYS[7], ARGV[1])
  if KEYS[6] then
    if is_held(KEYS[6], ARGV[1], 1, milliseconds()) then had = 1 end
    redis.call('ZREM', KEYS[6], ARGV[1])
  end
  -- What is there and is no lease stays as it is; who asks for it is told.
  if token or foreign then return had end
  -- Also one who has no place any more: it may have been called, and leave instead.
  if had == 0 and not placed and redis.call('EXISTS', KEYS[3]) == 0 then return had end
end

-- Grants the lease to the first in the queue, for as long as he would have kept his place, which he knows; and takes
-- it back, if nobody hears of it. Nothing, if that can not be.
local function hand_over(first, kept)
  kept = math.min(kept, tonumber(ARGV[4]))
  local fence = digits(next_fence(fence_at(KEYS[5]), 0))
  local fence_life = math.max(redis.call('PTTL', KEYS[5]), tonumber(ARGV[5]))
  if kept < 1 or redis.pcall('SET', KEYS[5], fence, 'PX', fence_life).err
    or redis.pcall('SET', KEYS[1], first .. ':' .. fence, 'PX', kept).err then return nil end
  local heard, muted = call(KEYS[2], 'g' .. fence, first, ARGV[2])
  if heard > 0 then leave(KEYS[3], KEYS[4], KEYS[7], first) else redis.call('DEL', KEYS[1]) end
  return heard, muted
end

if redis.call('EXISTS', KEYS[3]) == 0 then return had + told(push(KEYS[2], 'w')) end
local at = milliseconds()
local first, kept = first_in(KEYS[3], KEYS[4], KEYS[7], at)
while first and (not KEYS[7] or redis.call('ZSCORE', KEYS[7], first)) do
  if KEYS[6] and holds_at(KEYS[6], at) ~= 0 then return had end
  local called = not ARGV[4] or kept % 1 ~= 0
  local heard, muted
  if not called then heard, muted = hand_over(first, kept) end
  if not heard then heard, muted = call(KEYS[2], 't', first, ARGV[2]) end
  if not called or muted == 1 then return had + told(muted) end
  leave(KEYS[3], KEYS[4], KEYS[7], first)
  if heard > 0 then
    redis.pcall('SET', KEYS[1], first .. ':0', 'PX', ARGV[3])
    return had + told(muted)
  end
  first = first_in(KEYS[3], KEYS[4], KEYS[7], at)
end
return had + told(push(KEYS[2], 'w'))
