-- Returns the milliseconds until a hold in a sorted set ends, by its rank among all of them: '0' is
-- the first that ends, '-1' the last. Returns zero or less if it has ended, or if there is none.
local function hold_ms(set, rank, at)
  return (redis.pcall('ZRANGE', set, rank, rank, 'WITHSCORES')[2] or at) - at
end
