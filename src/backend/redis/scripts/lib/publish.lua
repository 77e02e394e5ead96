-- The bit of a reply which says that an ACL has refused to publish.
local REFUSED, refused = 4, 0 -- luacheck: ignore refused

-- Publishes a message, and returns how many clients received it. A shard channel of a cluster has
-- the suffix `s`. A refusal must not fail the script, which has done its work by then.
local function publish(channel, message)
  local command = string.find(channel, '}:s', 1, true) and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(command, channel, message)
  if type(heard) == 'number' then return heard end
  refused = REFUSED
  return 0
end

