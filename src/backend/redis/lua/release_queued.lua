-- Ends a lease or a reader's hold if its token has it, and its place in the queue, and tells whose turn it is.
-- KEYS 1 lease, 2 channel, 3 queue, 4 deadlines of its places (read-write only: 5 readers, 6 writers in the queue)
-- ARGV 1 token
-- Reply {1 ended or 0 not held by this token, 1 if PUBLISH is forbidden (if anyone was to be told)}

local at = milliseconds()
local had = 0
local placed = leave(KEYS[3], KEYS[4], KEYS[6], ARGV[1])
if KEYS[5] then
  if is_held(KEYS[5], ARGV[1], 1, at) then had = 1 end
  redis.call('ZREM', KEYS[5], ARGV[1])
end
local token = lease_at(KEYS[1])
if token == ARGV[1] then
  redis.call('DEL', KEYS[1])
  had = 1
elseif token then
  return {had}
end
if had == 0 and not placed then return {0} end

local first = first_in(KEYS[3], KEYS[4], KEYS[6], at)
if first and (not KEYS[6] or redis.call('ZSCORE', KEYS[6], first)) then
  -- One who waits for all others to leave.
  if KEYS[5] and holds_at(KEYS[5], at) ~= 0 then return {had} end
  return {had, push(KEYS[2], 't' .. first)}
end
return {had, push(KEYS[2], 'w')}
