-- What the scripts about shared holds and queues share. It is put in front of each of them, after the prelude.
--
-- A hold is a member of a sorted set, and ends at its score, in milliseconds of the server's clock; so is a
-- place in a queue, whose order is a second sorted set of tickets. A set lasts as long as its last member.

local function milliseconds()
  return math.floor(now() / 1000)
end

-- Counts what has not ended, and drops what has: how many, and milliseconds until the last one ends; or an
-- error, if it is not a set of ours.
local function holds_at(set, at)
  local ended = redis.pcall('ZREMRANGEBYSCORE', set, '-inf', at)
  if ended == 0 and redis.call('PTTL', set) == -1 then
    return nil, nil, redis.error_reply('FOREIGN ' .. set .. ' holds something that never ends')
  end
  if type(ended) == 'table' then
    local other = string.find(ended.err, 'WRONGTYPE')
    return nil, nil, other and redis.error_reply('FOREIGN ' .. set .. ' holds something that is not a hold') or ended
  end
  local last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2]
  return redis.call('ZCARD', set), last and tonumber(last) - at or 0
end

-- The members of the set that one hold of so many stands for.
local function members(token, count)
  local all = { token }
  for at = 2, count do all[at] = token .. ':' .. at end
  return all
end

-- Has a set last for so long from now at least.
local function keep(set, life)
  if redis.call('PTTL', set) < tonumber(life) then redis.call('PEXPIRE', set, life) end
end

-- Makes a hold last so long from now, and the set with it.
local function hold(set, token, count, at, life)
  for _, member in ipairs(members(token, count)) do redis.call('ZADD', set, at + life, member) end
  keep(set, life)
end

-- Whether all of a hold has not ended yet.
local function is_held(set, token, count, at)
  for _, member in ipairs(members(token, count)) do
    local ends = redis.pcall('ZSCORE', set, member)
    if type(ends) ~= 'string' or tonumber(ends) <= at then return false end
  end
  return true
end

-- Takes a place in a queue, or keeps the one that was taken before. The ticket is the millisecond in which it was taken,
-- in microseconds, or one behind the last in the queue; and its last two bits say how he waits: 1 he is only to be called, and not handed
-- the lease; 2 he is not held to the order, and passed over when he does not hear.
local function take_place(queue, deadlines, writers, token, at, life, how)
  -- A place that was taken before is kept on a full server, too: in a script that has written, every write is let
  -- through, and this one needs no memory.
  if redis.call('ZSCORE', queue, token) then redis.call('ZREM', deadlines, token) end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local ticket = math.max(at * 1000, last and last - last % 4 + 4 or 0) + (how or 0)
  redis.call('ZADD', queue, 'NX', ticket, token)
  keep(queue, life)
  redis.call('ZADD', deadlines, at + life, token)
  keep(deadlines, life)
  if writers then
    redis.call('ZADD', writers, redis.call('ZSCORE', queue, token), token)
    keep(writers, life)
  end
end

-- Leaves a queue. Says whether there was a place to leave.
local function leave(queue, deadlines, writers, token)
  redis.call('ZREM', deadlines, token)
  if writers then redis.call('ZREM', writers, token) end
  return redis.call('ZREM', queue, token) == 1
end

-- Tells one who waits, by the channel of its process (the first half of its token) if each has its own: how many
-- heard it, and 1 if it is forbidden.
local function call(channel, token, own, message)
  if own == '1' then channel = channel .. ':' .. string.sub(token, 1, 16) end
  local heard = publish(channel, message)
  if type(heard) == 'table' then return 0, 1 end
  return heard, 0
end

-- The first in a queue who is still there (and, if so wanted, held to the order), milliseconds until his place ends, and
-- his ticket. Those before him who did not keep theirs are dropped. (Of the writers in a queue: theirs is `queue`, and the
-- whole one `writers`.)
local function first_in(queue, deadlines, writers, at, ordered)
  local place = 0
  while true do
    local first = redis.call('ZRANGE', queue, place, place, 'WITHSCORES')
    if not first[1] then return nil end
    local ends, ticket = redis.call('ZSCORE', deadlines, first[1]), tonumber(first[2])
    if not ends or tonumber(ends) <= at then
      leave(queue, deadlines, writers, first[1])
    elseif ordered and ticket % 4 > 1 then
      place = place + 1
    else
      return first[1], tonumber(ends) - at, ticket
    end
  end
end
