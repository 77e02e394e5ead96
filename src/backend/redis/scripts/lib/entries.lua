-- Entries, and the commits that write them.

-- part: entry_at
-- include: read

-- Reads the entry under a key, up to the byte `last`, or its header of 88 bytes if that is nil.
-- Returns these bytes and its fence, or nil and 0 if it cannot be read. An entry may have
-- megabytes. The whole header is checked: an entry that only this script takes for one would stay
-- in the way.
local function entry_at(key, last)
  local value = read('GETRANGE', key, 0, last or 87)
  if not value then return nil, 0 end
  local digits = ('%d'):rep(16)
  local fence = string.match(value, '^bw1[vu](' .. digits .. ')' .. digits .. ('%x'):rep(52))
  if not fence then return nil, 0 end
  return value, tonumber(fence)
end

-- part: failure_at
-- include: read

-- Reads the record of failed loads under a key. Returns for how many milliseconds the name still
-- backs off, the number of failed loads in a row, and the message of the last one. The first two
-- are 0 without a record.
local function failure_at(key)
  local record = read('GET', key)
  if not record then return 0, 0 end
  local wait, kept, failures, message = string.match(record, '^(%d+),(%d+),(%d+),(.*)$')
  if not wait then return 0, 0 end
  local left = redis.call('PTTL', key) - kept
  -- More than at first: the server's clock was set back.
  if left > tonumber(wait) then left = 0 end
  return math.max(left, 0), tonumber(failures), message
end

-- part: publish_entry
-- include: publish_to_all

-- The greatest number of bytes that one script pushes to processes.
local PUSHED_AT_ONCE = 1048576
-- The bit of a reply that says that a client waited for the entry.
local AWAITED = 1

-- Pushes an entry to all waiters, or announces it. An entry is announced if it is larger than the
-- limit, or if many processes wait for it. Each of these has a turn to fetch it, so that they do
-- not all fetch it at once. Returns AWAITED if a client waited, or 0.
--
-- registered: as for `publish_to_all`
-- bytes: the entry, or nil if it was staged. It is read again if a waiter is to get it. The
--   waiters of a sharded channel are not known.
-- stored: its fence and its size as texts, and its key; or nil if it was not stored
local function publish_entry(channel, registered, bytes, limit, stored)
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
  return publish_to_all(channel, registered, message, message_for) > 0 and AWAITED or 0
end

-- part: move_entry
-- Makes the entry that the client wrote to `staged` just before the entry of the name, with this
-- text at this byte. Returns whether it was there: a full server refuses to write it.
local function move_entry(staged, entry, ttl_ms, at, text)
  if redis.call('PEXPIRE', staged, ttl_ms) == 0 then return false end
  redis.call('SETRANGE', staged, at, text)
  redis.call('RENAME', staged, entry)
  return true
end
