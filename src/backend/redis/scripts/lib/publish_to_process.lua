-- include: publish

-- Publishes a message about a name to the process of one of its waiters, by the first half of the
-- waiter's id. `channel` is that of the name. Returns what `publish` returns.
--
-- A single server has one channel for all names of a process in one namespace and family, so the
-- message begins with the name. In a cluster each process has a shard channel for each name.
local function publish_to_process(channel, waiter, message)
  local process = string.sub(waiter, 1, 16)
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  if not scope then return publish(channel .. ':' .. process, message) end
  return publish(scope .. 'p' .. database .. ':' .. process, scope .. name .. message)
end
