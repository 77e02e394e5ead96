-- The shared holds of a semaphore. A hold has a member of a sorted set for each unit, of which the
-- first is its owner. Their score is the millisecond in which they end together.

-- Returns the millisecond in which a hold ends, or nil if it has ended or never was.
local function held_until(set, owner, at)
  local ends = tonumber(read('ZSCORE', set, owner) or 0)
  return ends > at and ends or nil
end

-- Returns how many units are out, and the milliseconds until the first of them ends, or 0.
local function holds_at(set, at)
  local count = read('ZCOUNT', set, '(' .. at, '+inf')
  if not count or redis.call('PTTL', set) == -1 then
    fail_foreign(set, 'a set of permits or readers')
  end
  if count == 0 then return 0, 0 end
  local first = redis.call('ZRANGE', set, '(' .. at, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return count, first[2] - at
end

-- Returns whether a claim fits beside the units that are out. Its need is units or, if that is nil,
-- a sole hold.
local function fits(out, units, limit)
  return (units and out + units - limit or out) <= 0
end

-- Writes all members of a hold with one score, after these options of ZADD. Returns its reply.
local function write_hold(set, owner, count, score, ...)
  local words, start = { ... }, owner .. ':'
  -- A command makes a text of a number each time that it stands there.
  score = string.format('%.0f', score)
  for index = 1, count do
    words[#words + 1] = score
    words[#words + 1] = index == 1 and owner or start .. index
  end
  return redis.call('ZADD', set, unpack(words))
end

-- Makes a new hold last this long from now, and the set with it. Removes ended holds.
local function hold(set, owner, count, at, life_ms)
  write_hold(set, owner, count, at + life_ms)
  keep(set, life_ms)
  local ended = redis.call('ZRANGE', set, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if ended[1] then redis.call('ZREM', set, unpack(ended)) end
end

-- Makes a hold last its full time from now. Returns whether it stands with all of its members, of
-- which none is revived.
local function extend_hold(set, owner, count, at, life_ms)
  local ends = held_until(set, owner, at)
  if not ends then return false end
  keep(set, life_ms)
  -- A member that has this score already would not count as changed.
  local score = at + life_ms == ends and ends + 1 or at + life_ms
  return write_hold(set, owner, count, score, 'XX', 'CH') == count
end
