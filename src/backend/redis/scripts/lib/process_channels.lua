-- Returns the start of the channels of processes for the name with this channel, and how a message
-- on them begins: one channel is for all names of a namespace and family. In a cluster, each name
-- has shard channels of its own.
local function process_channels(channel)
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  if not scope then return channel .. ':', '' end
  return scope .. 'p' .. database .. ':', scope .. name
end

