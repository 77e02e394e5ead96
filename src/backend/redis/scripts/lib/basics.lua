-- What several topics need.

-- Reads a key. Returns nil for data of another type. Any other error fails the script: the refusal
-- of an ACL says nothing of what the key holds.
local function read(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call(command, ...) end
end

-- Fails the script, which does not wait for such data and does not overwrite it.
local function fail_foreign(key, what)
  error('FOREIGN ' .. key .. ' holds something that is not ' .. what, 0)
end

-- How soon a claim looks again, in milliseconds, if a full server refused what a push needs.
local LOOK_MS = 100

-- Runs a command. Returns whether a full server refuses it: it refuses a write that needs memory,
-- unless the script has written before. Any other error fails the script.
local function is_full(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' then return false end
  -- The refusal of an ACL may have a user's name.
  if string.find(reply.err, 'OOM command not allowed', 1, true) then return true end
  redis.call(...)
end

-- Makes a key last at least this long from now. This needs no memory, and a full server lets all
-- writes through in a script that has written.
local function keep(key, life_ms)
  redis.call('PEXPIRE', key, math.max(life_ms, redis.call('PTTL', key)))
end

-- Returns the server's time in microseconds as text of 16 digits.
local function time_text()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6)
end

local function now()
  return tonumber(time_text())
end

local function now_ms()
  return math.floor(now() / 1000)
end

-- How many queue entries a script touches, and what it returns to be called again for more.
local BATCH, AGAIN = 100, 8 -- luacheck: ignore AGAIN
