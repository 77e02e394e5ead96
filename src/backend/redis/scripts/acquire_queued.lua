-- Grants a lease to one holder: a mutex, a fair mutex, and the writer of a read-write lock. Whoever is not granted
-- takes a place in a queue. Fair claims and writers are granted in its order; of a mutex it is the order in which
-- it is handed over to the waiting ones, or they are called: for whoever is called it is kept for a moment, under the
-- fence 0.
-- KEYS 1 lease, 2 fence, 3 queue, 4 deadlines of its places (writers only: 5 readers, 6 writers in the queue)
-- ARGV 1 token, 2 lease ms, 3 fence life ms, 4 ms for which a place is kept (0: none is taken), 5 how he waits (shared)
-- Reply the fence, granted | {'held', fence or 0, ms left, holders}

local token, held, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end

local called = token == ARGV[1] and held == 0
if called then token = nil end

if token == ARGV[1] then
  -- It may have been passed the lease while it waited.
  if redis.call('EXISTS', KEYS[3]) == 1 then leave(KEYS[3], KEYS[4], KEYS[6], ARGV[1]) end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return held
end

local at, readers, reading, first, kept = nil, 0, 0, nil, 0
if tonumber(ARGV[5]) < 2 then
  at = milliseconds()
  if KEYS[5] then
    readers, reading, foreign = holds_at(KEYS[5], at)
    if foreign then return foreign end
  end
  -- Who is not held to the order holds nobody to it.
  first, kept = first_in(KEYS[3], KEYS[4], KEYS[6], at, true)
end

if not token and readers == 0 and (called or not first or first == ARGV[1]) then
  if not called and redis.call('EXISTS', KEYS[3]) == 1 then leave(KEYS[3], KEYS[4], KEYS[6], ARGV[1]) end
  local fence = next_fence(fence_at(KEYS[2]), 0)
  redis.call('SET', KEYS[1], ARGV[1] .. ':' .. digits(fence), 'PX', ARGV[2])
  redis.call('SET', KEYS[2], digits(fence), 'PX', ARGV[3])
  return fence
end

if ARGV[4] ~= '0' then
  -- A full server refuses the place. Where he is not held to it, he does without.
  local take = tonumber(ARGV[5]) < 2 and function(take, ...) take(...) end or pcall
  take(take_place, KEYS[3], KEYS[4], KEYS[6], ARGV[1], at or milliseconds(), ARGV[4], ARGV[5])
end
if token then return {'held', held, left, 1} end
if readers > 0 then return {'held', 0, reading, readers} end
return {'held', 0, kept, 0}
