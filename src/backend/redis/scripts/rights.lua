-- Tries the commands that caches (`for_caches` is '1') or locks need, and returns the names of
-- those that the user may not run. Leaves nothing behind: where the key stands, it is a string of
-- one second, on which the commands of other types fail.
--
-- KEYS: none, since the key lies outside of the names that the user may be held to
-- publish: the command of pushes
local key, for_caches, for_locks, publish = unpack(ARGV)

local missing = {}
local function try(commands, ...)
  for command in string.gmatch(commands, '%u+') do
    local reply = redis.pcall(command, ...)
    local refusal = type(reply) == 'table' and reply.err or ''
    if string.find(refusal, "can't run this command", 1, true)
      or string.find(refusal, 'no permissions to run', 1, true) then
      missing[#missing + 1] = string.lower(command)
    end
  end
end

try('SET', key, '1', 'PX', 1000)
local may_set = #missing == 0
try('GET PTTL EXISTS', key)
try('PEXPIRE', key, 1000)
try('TIME')
try(publish, key, '')
if for_caches == '1' then
  try('GETRANGE', key, 0, 0)
  try('SETRANGE', key, 0, '')
  try('RENAME', key, key)
  try('APPEND', key, '')
end
if for_locks == '1' then
  try('ZADD', key, 'XX', 1, 'a')
  try('ZREM ZSCORE HMGET HDEL', key, 'a')
  try('ZRANGE ZCOUNT', key, 0, 0)
  -- Without the string, it would leave a hash behind.
  if may_set then try('HSET', key, 'a', 1) end
  try('UNLINK', key)
end
try('DEL', key)
return missing
