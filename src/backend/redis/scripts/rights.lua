-- Tries the commands that caches and locks need, and returns the commands that the user may not
-- run, as words. A user that may run no command for caches alone needs only the rights of locks.
-- The same holds the other way round. The key is a string that lasts for a second, on which most
-- commands fail.
-- KEYS: none, since the key is in no namespace, and the user may be limited to namespaces
-- push: the command of pushes
local key, push = unpack(ARGV)

-- Tries commands, each with the number of its arguments. Returns those that are refused, and
-- whether another one may be run.
local function try(commands)
  local missing, may_some = '', false
  for command, count in string.gmatch(commands, '(%u+) (%d)') do
    local reply = redis.pcall(command, unpack({ key, key, '1' }, 1, tonumber(count)))
    local refusal = type(reply) == 'table' and reply.err or ''
    local is_refused = string.find(refusal, "can't run this command", 1, true)
      or string.find(refusal, 'no permissions to run', 1, true)
    if is_refused then missing = missing .. ' ' .. string.lower(command) end
    may_some = may_some or not is_refused
  end
  return missing, may_some
end

-- A server before Redis 6.2 does not know the word GET here.
local written = redis.pcall('SET', key, '1', 'PX', 1000, 'GET')
if type(written) == 'table' and string.find(written.err or '', 'syntax error', 1, true) then
  return redis.error_reply('the server is older than Redis 6.2, which is needed')
end
local missing = try('SET 3 GET 1 PTTL 1 EXISTS 1 PEXPIRE 2 TIME 0 ' .. push .. ' 2')
local caches, may_cache = try('GETRANGE 3 SETRANGE 3 RENAME 2 APPEND 2')
local locks, may_lock = try('ZADD 3 ZREM 2 ZSCORE 2 ZRANGE 3 ZCOUNT 3 HSET 3 HMGET 2 UNLINK 1')
if may_cache or not may_lock then missing = missing .. caches end
if may_lock or not may_cache then missing = missing .. locks end
redis.pcall('PEXPIRE', key, 1000)
return missing .. try('DEL 1')
