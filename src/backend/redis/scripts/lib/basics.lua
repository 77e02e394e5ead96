-- What several topics need.

-- part: read
-- Runs a command that reads a key. Returns nil if the key holds data of another type. Any other
-- error fails the script, such as a refusal by an ACL: it says nothing of what the key holds.
local function read(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call(command, ...) end
  return nil
end

-- part: keep
-- Makes a key last at least this long from now.
local function keep(key, life_ms)
  if redis.call('PTTL', key) < tonumber(life_ms) then redis.call('PEXPIRE', key, life_ms) end
end

-- part: time
-- Returns the server's time in microseconds as text: 16 digits.
local function time_text()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6)
end

-- part: clock
-- include: time

-- Returns the same as a number. A Lua number holds it exactly until the year 2255.
local function now()
  return tonumber(time_text())
end

-- part: clock_ms
-- include: clock

-- Returns it in milliseconds.
local function now_ms()
  return math.floor(now() / 1000)
end

-- part: batch
-- How many members of a set one script touches at most.
local BATCH = 100

-- part: again
-- Returned by a script that has more to do than it may at once. It is called again.
local AGAIN = 8

-- part: out_of_memory
-- How a full server begins its refusal of a command. The refusal of an ACL may have a user's name.
local OUT_OF_MEMORY = 'OOM command not allowed'
