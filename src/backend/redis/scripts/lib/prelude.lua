-- What every script shares. It is put in front of each of them.

-- The server's time in microseconds. A Lua number holds it exactly until the year 2255.
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Whole microseconds as text: tostring would give 1.79e+15.
local function digits(number)
  return string.format('%016.0f', number)
end

-- The lease `token:fence` under a key: token, fence, milliseconds left; nil if it is free.
-- What is not a lease of ours is an error: never waited on, never overwritten.
local function lease_at(key)
  local value = redis.pcall('GET', key)
  if not value then return nil end
  local token, fence
  if type(value) == 'string' then token, fence = string.match(value, '^(%x+):(%d+)$') end
  local left = token and redis.call('PTTL', key) or -1
  if left < 0 then
    return nil, nil, nil, redis.error_reply('FOREIGN ' .. key .. ' holds something that is not a lease')
  end
  return token, tonumber(fence), left
end

-- The last fence under a key, and whether its grant was committed; 0 if there is none.
local function fence_at(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then return 0, false end
  local fence, spent = string.match(value, '^(%d+)(:?c?)$')
  return tonumber(fence) or 0, spent == ':c'
end

-- The entry under a key and its fence; nil and 0 if there is none that can be read: the whole header is
-- looked at, for what is taken for an entry here and is none to who asked would stand in the way for ever.
local function entry_at(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then return nil, 0 end
  local fence = string.match(value, '^bw1[vu](' .. ('%d'):rep(16) .. ')' .. ('%x'):rep(16))
  if not fence then return nil, 0 end
  return value, tonumber(fence)
end

-- A fence greater than every one that is still known, and than every one that a clock has given.
local function next_fence(last, stored)
  return math.max(now(), last + 1, stored + 1)
end

-- Publishes; in a cluster, where the name of a channel goes on with `s`, to those at this shard of it.
-- The number who heard it, or an error.
local function publish(channel, message)
  return redis.pcall(string.match(channel, '}:(%a)') == 's' and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Pushes to who waits. A missing right on the channel must not undo what was done before. 1 if it was missing.
local function push(channel, message)
  local pushed = publish(channel, message)
  return type(pushed) == 'table' and pushed.err and 1 or 0
end

-- What a script says of a push beside one bit of its own: 2 if it was made, 4 if it is forbidden. (One number is a
-- cheaper answer than a list.)
local function told(muted)
  return 2 + 2 * muted
end

-- An entry in the message itself if it is small, else only word that it is there.
local function push_entry(channel, entry, limit)
  if #entry <= tonumber(limit) then return push(channel, 'e' .. entry) else return push(channel, 'w') end
end
