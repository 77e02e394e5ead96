-- Runs a command that reads a key. Returns nil if the key holds data of another type. Any other
-- error fails the script, such as a refusal by an ACL: it says nothing of what the key holds.
local function read(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then redis.call(command, ...) end
  return nil
end
