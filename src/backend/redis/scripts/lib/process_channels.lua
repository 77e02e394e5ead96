-- Returns the start of the channels of processes for a name, and what a message on them begins
-- with. `channel` is that of the name. A single server has one channel for all names of a process
-- in one namespace and family, so the message begins with the name. In a cluster each process has
-- a shard channel for each name.
local function process_channels(channel)
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  if not scope then return channel .. ':', '' end
  return scope .. 'p' .. database .. ':', scope .. name
end
