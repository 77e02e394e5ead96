-- The bits of `publish` in a reply.
local PUBLISHED, REFUSED = 2, 4

-- Publishes a message. A shard channel of a cluster is known by its suffix `s`. Returns PUBLISHED,
-- or REFUSED (by an ACL), and how many clients received the message. A refusal must not fail the
-- script, which has done its work by then.
local function publish(channel, message)
  local command = string.find(channel, '}:s', 1, true) and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(command, channel, message)
  if type(heard) == 'number' then return PUBLISHED, heard end
  return REFUSED, 0
end
