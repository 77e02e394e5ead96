-- include: read

-- Counts the holds in a sorted set. A hold is a member, and its score the millisecond in which it
-- ends. Returns how many there are, and the milliseconds until the last one ends. Any other key is
-- an error, the third result.
local function holds_at(set, at)
  local count = read('ZCOUNT', set, '(' .. at, '+inf')
  if not count then
    local what = set .. ' holds data that is not a set of permits or readers'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  if redis.call('PTTL', set) == -1 then
    local what = set .. ' holds something that never ends'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  if count == 0 then return 0, 0 end
  return count, redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] - at
end
