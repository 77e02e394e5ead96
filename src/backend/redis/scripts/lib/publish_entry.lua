-- include: publish_to_all

-- The bytes of an entry that one script pushes to processes at most.
local PUSHED_AT_ONCE = 1048576

-- Pushes an entry to all waiters, or announces it. An entry is announced if it is larger than the
-- limit, or if many processes wait for it. Each of these has a turn to fetch it, so that they do
-- not all fetch it at once. Returns what `publish_to_all` returns.
--
-- bytes: the entry, or nil if it is staged
-- stored: its fence and its size as texts, or nil if it was not stored
local function publish_entry(channel, processes, bytes, limit, stored)
  local pushed = bytes and #bytes <= tonumber(limit) and 'e' .. bytes
  local announced = stored and 'a' .. stored[1] .. stored[2] .. ','
  local message = pushed or announced or 'w'
  return publish_to_all(channel, processes, message, function(count, turn)
    if pushed and (#pushed * count <= PUSHED_AT_ONCE or not stored) then return pushed end
    return announced and announced .. turn or 'w'
  end)
end
