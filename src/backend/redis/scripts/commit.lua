-- Writes an entry, ends its lease and publishes the entry, if its fence is the last one of the
-- name. With a `ttl_ms` of '0', or on a full server, publishes the entry and does not write it.
--
-- Returns 16 if stored or 8 if only pushed, plus the bits of `publish_entry` if it published; 0 if
-- the fence is not the last one; {'newer', entry, time} if an entry with a greater fence stands,
-- cut after `part` bytes, at this time; -1 and does nothing if the staged entry is not there, but
-- could be pushed as an argument.
--
-- processes: the processes that wait for the load
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `head` and `rest`; or nil
-- head, rest: the bytes of the entry before and behind the time at which it is stored
-- size: of the entry in bytes
local lease, fence, entry, channel, processes, failure, staged = unpack(KEYS)
local owner, granted, head, rest, size, ttl_ms, push_limit, part = unpack(ARGV)
local UNSTAGED = -1

-- include: committed, publish_entry, commit_mark, move_entry, registered, time_text
local stored_at = time_text()
local bytes = head .. stored_at .. rest
local function is_written()
  if staged then return move_entry(staged, entry, ttl_ms, 20, stored_at) end
  return redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
end
local function tell(is_stored, sets)
  local stored = is_stored and { granted, size, entry }
  return publish_entry(channel, processes, sets, not staged and bytes, push_limit, stored)
end

-- The usual case: the lease is as it was granted, and its fence is the last one.
local value, own = redis.pcall('GET', lease), owner .. ':' .. granted
local is_own = value == own or value == own .. REGISTERED
if ttl_ms ~= '0' and is_own and redis.pcall('GET', fence) == granted and is_written() then
  mark_committed(fence, granted)
  redis.call('DEL', lease, failure)
  return STORED + tell(true, value == own and 0 or 1)
end

-- include: settled_commit, end_load
local function commit_otherwise()
  local mine = tonumber(granted)
  local settled =
    settled_commit(lease, fence, entry, channel, processes, owner, mine, part, stored_at)
  if settled then return settled end

  if staged and tonumber(size) <= tonumber(push_limit)
    and redis.call('EXISTS', staged) == 0 then
    return UNSTAGED
  end
  local outcome = PUSHED
  if ttl_ms ~= '0' then
    -- A full server refuses the write. The entry that stands is older, and is removed.
    if is_written() then outcome = STORED else redis.pcall('DEL', entry) end
  end
  local sets = end_load(lease, fence, channel, failure, owner, mine)
  return outcome + tell(outcome == STORED, sets)
end

local reply = commit_otherwise()
if staged then redis.pcall('DEL', staged) end
return reply
