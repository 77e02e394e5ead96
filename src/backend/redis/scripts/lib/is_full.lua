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

