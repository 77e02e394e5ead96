-- Ends a lease or a reader's hold if its token has it, and its place in the queue, and tells whose turn it is.
-- KEYS 1 lease, 2 channel, 3 queue, 4 deadlines of its places, 5 fence (read-write: 6 readers, 7 writers in the queue)
-- ARGV 1 token, 2 1: each process has a channel of its own, so that the others need not wake,
--      3 ms for which the lease is kept for who is called and not held to the order, who loses the place, so that one
--      that died is called once,
--      4 ms for which it is handed over to whoever waits for that (0: he is called), 5 fence life ms,
--      6 ms after which a place of who is not held to the order may end before what is handed over (in front of this, it
--      is looked at only then)
-- Reply 1 ended or 0 not held by this token, plus what was told

local had = 0
local token, held, _, foreign = lease_at(KEYS[1])
local placed = leave(KEYS[3], KEYS[4], KEYS[7], ARGV[1])
if token == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if held > 0 then had = 1 end
else
  if KEYS[6] then
    if is_held(KEYS[6], ARGV[1], 1, milliseconds()) then had = 1 end
    redis.call('ZREM', KEYS[6], ARGV[1])
  end
  -- What is there and is no lease stays as it is; who asks for it is told.
  if token or foreign then return had end
  -- Also one who has no place any more: it may have been called, and leave instead.
  if had == 0 and not placed and redis.call('EXISTS', KEYS[3]) == 0 then return had end
end

if redis.call('EXISTS', KEYS[3]) == 0 then return had + told(push(KEYS[2], 'w')) end
local at = milliseconds()

-- Hands the lease over, and says until when: so long after the place was taken, which he knows who took it. It is taken
-- back, if nobody hears of it. Nothing, if that can not be.
local function hand_over(first, kept, ticket)
  local life = math.min(kept, tonumber(ARGV[4]))
  local fence = digits(next_fence(fence_at(KEYS[5]), 0))
  if life < 1 or redis.pcall('SET', KEYS[5], fence, 'PX', ARGV[5]).err
    or redis.pcall('SET', KEYS[1], first .. ':' .. fence, 'PX', life).err then return nil end
  local ends = math.max(at - math.floor(ticket / 1000) + life, 0)
  local heard, muted = call(KEYS[2], first, ARGV[2], 'g' .. fence .. first .. ends)
  if heard > 0 then leave(KEYS[3], KEYS[4], KEYS[7], first) else redis.call('DEL', KEYS[1]) end
  return heard, muted
end

local first, kept, ticket = first_in(KEYS[3], KEYS[4], KEYS[7], at)
while first and (not KEYS[7] or redis.call('ZSCORE', KEYS[7], first)) do
  if KEYS[6] and holds_at(KEYS[6], at) ~= 0 then return had end
  local how, handed, heard, muted = ticket % 4, nil, nil, nil
  if how % 2 == 0 and ARGV[4] ~= '0' then handed, muted = hand_over(first, kept, ticket) end
  if not handed then heard, muted = call(KEYS[2], first, ARGV[2], 't' .. first) end
  if muted == 1 or how < 2 or handed and handed > 0 then return had + told(muted) end
  leave(KEYS[3], KEYS[4], KEYS[7], first)
  if heard and heard > 0 then
    redis.pcall('SET', KEYS[1], first .. ':0', 'PX', ARGV[3])
    return had + told(muted)
  end
  first, kept, ticket = first_in(KEYS[3], KEYS[4], KEYS[7], at)
end
return had + told(push(KEYS[2], 'w'))
