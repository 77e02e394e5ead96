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

-- Pushes an entry to all waiters. A staged one, or more than 1 MiB for all processes together, is
-- announced with their number: they fetch it one after another.
-- bytes: the entry, or nil if it was staged
-- fence, size: its fence and its bytes, or nil if it was not stored
local function publish_entry(channel, registered, bytes, fence, size)
  -- An id has 16 digits. The waiters of a sharded channel are not known.
  local crowd, message = #registered / 17, 'w'
  if bytes and (#bytes * crowd <= 1048576 or not fence) then
    message = 'e' .. bytes
  elseif fence then
    message = 'a' .. fence .. size .. ',' .. crowd
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
