-- Reads a key. Returns nil for data of another type. Any other error fails the script, because the
-- refusal of an ACL says nothing of what the key holds.
local function read(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call(command, ...) end
end

