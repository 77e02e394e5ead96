-- Messages to the processes that wait.

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

-- Returns the start of the channels of processes for the name with this channel, and how a message
-- on them begins: one channel is for all names of a namespace and family. In a cluster, each name
-- has shard channels of its own.
local function process_channels(channel)
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  if not scope then return channel .. ':', '' end
  return scope .. 'p' .. database .. ':', scope .. name
end

-- Publishes a message about a name to the process of one of its waiters, by the id of that.
local function publish_to_process(channel, waiter, message)
  local start, name = process_channels(channel)
  return publish(start .. string.sub(waiter, 1, 16), name .. message)
end

-- Publishes on the channel of a name, and to each backend that registered.
local function publish_to_all(channel, registered, message)
  local start, name = process_channels(channel)
  for process in string.gmatch(registered, ',(%x+)') do
    publish(start .. process, name .. message)
  end
  publish(channel, message)
end

-- Tells the local tiers that an entry changes under this fence, before it does. A refusal is
-- ignored.
local function tell_tiers(tiers, lease, text)
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. text) end
end
