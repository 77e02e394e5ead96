-- Entries, and the commits that write them.

-- Returns the header of an entry and its fence, or nil and 0. The whole header is checked: what
-- only this script takes for an entry would stay in the way.
local function entry_at(key)
  local header, digits = read('GETRANGE', key, 0, 87) or '', ('%d'):rep(16)
  local fence = string.match(header, '^bw1[vu](' .. digits .. ')' .. digits .. ('%x'):rep(52))
  if not fence then return nil, 0 end
  return header, tonumber(fence)
end

-- Returns for how many milliseconds a name backs off, its failed loads in a row, and the message of
-- the last one; or 0 and 0.
local function failure_at(key)
  local wait, kept, failures, message =
    string.match(read('GET', key) or '', '^(%d+),(%d+),(%d+),(.*)$')
  if not wait then return 0, 0 end
  local left = redis.call('PTTL', key) - kept
  -- More than at first: the server's clock was set back.
  if left > tonumber(wait) then left = 0 end
  return math.max(left, 0), tonumber(failures), message
end

-- The greatest number of bytes that one script pushes to processes.
local PUSHED_AT_ONCE = 1048576

-- Pushes an entry to all waiters. One over the limit, or one that many processes wait for, is
-- announced with their number: they fetch it one after another.
-- bytes: the entry, or nil if it was staged; it is read if a waiter is to get it
-- stored: its fence, its size and its key, or nil if it was not stored
local function publish_entry(channel, registered, bytes, limit, stored)
  limit = tonumber(limit)
  -- An id has 16 digits. The waiters of a sharded channel are not known.
  local crowd, is_sharded = #registered / 17, string.find(channel, '}:s', 1, true)
  if not bytes and stored and tonumber(stored[2]) <= limit and (is_sharded or crowd > 0) then
    bytes = redis.call('GET', stored[3])
  end
  local message = stored and 'a' .. stored[1] .. stored[2] .. ',' .. crowd or 'w'
  if bytes and #bytes <= limit and (#bytes * crowd <= PUSHED_AT_ONCE or not stored) then
    message = 'e' .. bytes
  end
  publish_to_all(channel, registered, message)
end

-- Makes a staged entry the entry of the name, with this text at this byte. Returns whether it was
-- there: a full server refuses to write it.
local function move_entry(staged, entry, ttl_ms, at, text)
  if redis.call('PEXPIRE', staged, ttl_ms) == 0 then return false end
  redis.call('SETRANGE', staged, at, text)
  redis.call('RENAME', staged, entry)
  return true
end
