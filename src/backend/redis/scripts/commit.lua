-- Writes an entry, ends its lease and publishes the entry, if its fence is the last one of the
-- name. With a `ttl_ms` of '0', or on a full server, publishes the entry and does not write it.
--
-- Returns 16 if stored or 8 if only pushed, plus the bits of `publish_entry` if it published; 0 if
-- the fence is not the last one; {'newer', entry, time} if an entry with a greater fence stands,
-- cut after `part` bytes, at this time; -1 and does nothing if the staged entry is not there, but
-- could be pushed as an argument.
--
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `head` and `rest`; or nil
-- head, rest: the bytes of the entry before and behind the time at which it is stored
-- size: of the entry in bytes
-- tiers: the channel of local tiers that may have the entry which this one replaces, or ''
-- start: of the channels of processes; '' if the channels are shard channels of the name
local lease, fence, entry, channel, failure, staged = unpack(KEYS)
local owner, granted, head, rest, size, ttl_ms, push_limit, part, start, tiers = unpack(ARGV)
local UNSTAGED, STORED_AND_TOLD, STORED_NOT_TOLD = -1, 18, 20

local time = redis.call('TIME')
local stored_at = time[1] .. string.sub('00000' .. time[2], -6)
local bytes = head .. stored_at .. rest

-- The usual case: the lease is as it was granted, but for a few ids behind it; its fence is the
-- last one; and the entry is pushed. It is written without functions of its own and without
-- patterns: a server whose caches are cold spends 20 us on them.
local value, own = redis.pcall('GET', lease), owner .. ':' .. granted
if type(value) == 'string' and (value == own or string.sub(value, 1, #own + 1) == own .. ',')
  and #value < 256 and ttl_ms ~= '0' and not staged
  and #bytes <= tonumber(push_limit) and redis.pcall('GET', fence) == granted
  and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok then
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. granted) end
  redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
  redis.call('DEL', lease, failure)
  local command = start == '' and 'SPUBLISH' or 'PUBLISH'
  local message, waiting = 'e' .. bytes, 0
  for at = #own + 2, #value, 17 do
    local process = string.sub(value, at, at + 15)
    redis.pcall(command, start .. process, string.sub(lease, 1, -2) .. message)
    waiting = 1
  end
  local heard = redis.pcall(command, channel, message)
  if type(heard) ~= 'number' then return STORED_NOT_TOLD + waiting end
  return STORED_AND_TOLD + math.min(waiting + heard, 1)
end

-- include: committed, publish_entry, move_entry, settled_commit, end_load
-- include: tell_tiers
local function is_written()
  if staged then return move_entry(staged, entry, ttl_ms, 20, stored_at) end
  return redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
end

local function commit_otherwise()
  local mine = tonumber(granted)
  local settled =
    settled_commit(lease, fence, entry, channel, owner, mine, part, stored_at)
  if settled then return settled end

  if staged and tonumber(size) <= tonumber(push_limit)
    and redis.call('EXISTS', staged) == 0 then
    return UNSTAGED
  end
  local outcome = PUSHED
  if ttl_ms ~= '0' then
    tell_tiers(tiers, lease, granted)
    -- A full server refuses the write. The entry that stands is older, and is removed.
    if is_written() then outcome = STORED else redis.pcall('DEL', entry) end
  end
  local registered = end_load(lease, fence, failure, owner, mine)
  local stored = outcome == STORED and { granted, size, entry }
  local pushed = not staged and bytes
  return outcome + publish_entry(channel, registered, pushed, push_limit, stored)
end

local reply = commit_otherwise()
if staged then redis.pcall('DEL', staged) end
return reply
