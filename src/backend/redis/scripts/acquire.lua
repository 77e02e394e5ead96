-- Grants a lease: again to the token that has it, or anew, with a new fence, if it is free.
-- KEYS 1 lease, 2 fence, 3 entry (caches only)
-- ARGV 1 token, 2 lease ms, 3 fence life ms, 4 fence of the entry that was seen (caches only)
-- Reply the fence, granted | {'newer', entry} | {'held', fence, ms left, holders}

local token, held, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end

if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return held
end

local stored = 0
if KEYS[3] then
  local entry
  entry, stored = entry_at(KEYS[3])
  -- (A master that became a replica shows scripts what has expired, before version 7.)
  if entry and stored > tonumber(ARGV[4]) and redis.call('PTTL', KEYS[3]) ~= 0 then return {'newer', entry} end
end

if token then return {'held', held, left, 1} end

local last = fence_at(KEYS[2])
local fence = next_fence(last, stored)
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. digits(fence), 'PX', ARGV[2])
redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[3])
return fence
