-- Returns the milliseconds until the first hold of a set ends, or 0.
local function first_end(set, at)
  local first = redis.call('ZRANGE', set, '(' .. at, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return math.max((first[2] or 0) - at, 0)
end

