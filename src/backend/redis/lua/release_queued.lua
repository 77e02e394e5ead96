-- Ends a lease or a reader's hold if its token has it, and its place in the queue, and tells whose turn it is.
-- KEYS 1 lease, 2 channel, 3 queue, 4 deadlines of its places (read-write only: 5 readers, 6 writers in the queue)
-- ARGV 1 token, 2 0: whoever is first in the queue gets it; else ms for which it is kept for who is called, who
--      loses the place, so that one that died is called once; and one whom nobody hears is passed over,
--      3 1: each process has a channel of its own, so that the others need not wake
-- Reply 1 ended or 0 not held by this token, plus what was told

local had = 0
local token, held = lease_at(KEYS[1])
if token == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if held > 0 then had = 1 end
else
  local placed = leave(KEYS[3], KEYS[4], KEYS[6], ARGV[1])
  if KEYS[5] then
    if is_held(KEYS[5], ARGV[1], 1, milliseconds()) then had = 1 end
    redis.call('ZREM', KEYS[5], ARGV[1])
  end
  if token then return had end
  -- Also one who has no place any more: it may have been called, and leave instead.
  if had == 0 and not placed and redis.call('EXISTS', KEYS[3]) == 0 then return had end
end

if redis.call('EXISTS', KEYS[3]) == 0 then return had + told(push(KEYS[2], 'w')) end
local at = milliseconds()
local first = first_in(KEYS[3], KEYS[4], KEYS[6], at)
while first and (not KEYS[6] or redis.call('ZSCORE', KEYS[6], first)) do
  if KEYS[5] and holds_at(KEYS[5], at) ~= 0 then return had end
  local heard, muted = call(KEYS[2], first, ARGV[3])
  if ARGV[2] == '0' or muted == 1 then return had + told(muted) end
  leave(KEYS[3], KEYS[4], KEYS[6], first)
  if heard > 0 then
    redis.pcall('SET', KEYS[1], first .. ':0', 'PX', ARGV[2])
    return had + told(muted)
  end
  first = first_in(KEYS[3], KEYS[4], KEYS[6], at)
end
return had + told(push(KEYS[2], 'w'))
