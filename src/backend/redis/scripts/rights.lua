-- Tries the commands that caches and locks need, and returns the names of those that the user may
-- not run. A user that may run none of those for caches alone is held to locks, and the other way
-- round. Leaves nothing behind: where the key stands, it is a string of one second, on which the
-- commands of other types fail.
-- KEYS: none, since the key lies outside of the names that the user may be held to
-- push: the command of pushes
local key, push = unpack(ARGV)

local function try(missing, commands, ...)
  for command in string.gmatch(commands, '%u+') do
    local reply = redis.pcall(command, ...)
    local refusal = type(reply) == 'table' and reply.err or ''
    if string.find(refusal, "can't run this command", 1, true)
      or string.find(refusal, 'no permissions to run', 1, true) then
      missing[#missing + 1] = string.lower(command)
    else
      missing.has_some = true
    end
  end
end

-- An older server does not know the last word.
local written = redis.pcall('SET', key, '1', 'PX', 1000, 'GET')
if type(written) == 'table' and string.find(written.err or '', 'syntax error', 1, true) then
  return redis.error_reply('the server is older than Redis 6.2, which is needed')
end
local missing, caches, locks = {}, {}, {}
try(missing, 'SET', key, '1', 'PX', 1000)
local may_set = #missing == 0
try(missing, 'GET PTTL EXISTS', key)
try(missing, 'PEXPIRE', key, 1000)
try(missing, 'TIME')
try(missing, push, key, '')
try(caches, 'GETRANGE', key, 0, 0)
try(caches, 'SETRANGE', key, 0, '')
try(caches, 'RENAME', key, key)
try(caches, 'APPEND', key, '')
try(locks, 'ZADD', key, 'XX', 1, 'a')
try(locks, 'ZREM ZSCORE HMGET HDEL', key, 'a')
try(locks, 'ZRANGE ZCOUNT', key, 0, 0)
-- Without the string, it would leave a hash behind.
if may_set then try(locks, 'HSET', key, 'a', 1) end
try(locks, 'UNLINK', key)
try(missing, 'DEL', key)
for _, use in ipairs({ caches, locks }) do
  if use.has_some or not (caches.has_some or locks.has_some) then
    for _, command in ipairs(use) do missing[#missing + 1] = command end
  end
end
return missing
