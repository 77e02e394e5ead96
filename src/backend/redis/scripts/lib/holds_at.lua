-- Counts the holds in a sorted set. A hold is a member, and its score the millisecond in which it
-- ends. Removes those that have ended. Returns how many there are, and the milliseconds until the
-- last one ends. Any other key is an error, the third result.
local function holds_at(set, at)
  local ended = redis.pcall('ZREMRANGEBYSCORE', set, '-inf', at)
  if ended == 0 and redis.call('PTTL', set) == -1 then
    local what = set .. ' holds something that never ends'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  if type(ended) == 'table' then
    if not string.find(ended.err, 'WRONGTYPE') then return nil, nil, ended end
    local what = set .. ' holds data that is not a set of permits or readers'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  local last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2]
  return redis.call('ZCARD', set), last and tonumber(last) - at or 0
end
