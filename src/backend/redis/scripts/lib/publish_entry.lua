-- include: publish_to_all

-- The greatest number of bytes that one script pushes to processes.
local PUSHED_AT_ONCE = 1048576
-- The bit of a reply that says that a client waited for the entry.
local AWAITED = 1

-- Pushes an entry to all waiters, or announces it. An entry is announced if it is larger than the
-- limit, or if many processes wait for it. Each of these has a turn to fetch it, so that they do
-- not all fetch it at once. Returns the bit of `publish`, plus AWAITED if a client waited.
--
-- registered: as for `publish_to_all`
-- bytes: the entry, or nil if it was staged. It is read again if a waiter is to get it. The
--   waiters of a sharded channel are not known.
-- stored: its fence and its size as texts, and its key; or nil if it was not stored
local function publish_entry(channel, registered, processes, bytes, limit, stored)
  limit = tonumber(limit)
  if not bytes and stored and tonumber(stored[2]) <= limit
    and (string.find(channel, '}:s', 1, true) or registered ~= '') then
    bytes = redis.call('GET', stored[3])
  end
  local pushed = bytes and #bytes <= limit and 'e' .. bytes
  local announced = stored and 'a' .. stored[1] .. stored[2] .. ','
  local message = pushed or announced or 'w'
  local function message_for(count, turn)
    if pushed and (#pushed * count <= PUSHED_AT_ONCE or not stored) then return pushed end
    return announced and announced .. turn or 'w'
  end
  local told, waiting = publish_to_all(channel, registered, processes, message, message_for)
  return told + (waiting > 0 and AWAITED or 0)
end
