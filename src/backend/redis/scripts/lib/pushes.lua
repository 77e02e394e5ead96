-- Messages to the processes that wait.

-- part: publish
-- The bit of a reply which says that an ACL has refused to publish.
local REFUSED, refused = 4, 0 -- luacheck: ignore refused

-- Publishes a message. A shard channel of a cluster is known by its suffix `s`. Returns how many
-- clients received it. A refusal must not fail the script, which has done its work by then.
local function publish(channel, message)
  local command = string.find(channel, '}:s', 1, true) and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(command, channel, message)
  if type(heard) == 'number' then return heard end
  refused = REFUSED
  return 0
end

-- part: process_channels
-- Returns the start of the channels of processes for a name, and what a message on them begins
-- with. `channel` is that of the name. A single server has one channel for all names of a process
-- in one namespace and family, so the message begins with the name. In a cluster each process has
-- a shard channel for each name.
local function process_channels(channel)
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  if not scope then return channel .. ':', '' end
  return scope .. 'p' .. database .. ':', scope .. name
end

-- part: publish_to_process
-- include: publish, process_channels

-- Publishes a message about a name to the process of one of its waiters, by the first half of the
-- waiter's id. `channel` is that of the name.
local function publish_to_process(channel, waiter, message)
  local start, name = process_channels(channel)
  return publish(start .. string.sub(waiter, 1, 16), name .. message)
end

-- part: publish_to_all
-- include: publish, process_channels

-- Publishes on the channel of a name, and to each backend that registered. Returns how many there
-- were, with the clients on the channel of the name.
--
-- registered: as in the lease
-- message: for the channel of the name
-- message_for: returns the message for a backend by their number and its turn, from 0; nil if it is
--   the same
local function publish_to_all(channel, registered, message, message_for)
  local waiting = {}
  for process in string.gmatch(registered, ',(%x+)') do waiting[#waiting + 1] = process end
  local start, name = process_channels(channel)
  for turn, process in ipairs(waiting) do
    local own = message_for and message_for(#waiting, turn - 1) or message
    publish(start .. process, name .. own)
  end
  return publish(channel, message) + #waiting
end

-- part: tell_tiers
-- Tells the local tiers that may have an entry that it changes under this fence. The scripts do so
-- before the change. A process that may not publish is not heard, as its waiters know.
local function tell_tiers(tiers, lease, text)
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. text) end
end
