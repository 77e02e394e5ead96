-- Writes an entry, ends its lease and publishes the entry, if its fence is the last one of the
-- name. With a `ttl_ms` of '0', or on a full server, publishes the entry and does not write it.
-- Returns 2 if stored or 1 if only pushed, plus REFUSED; 0 if the fence is not the last one;
-- {'newer', entry, time} if an entry with a greater fence stands; -1 if the staged entry is not
-- there, but could be pushed.
-- failure: the record of failed loads, which ends
-- staged: holds a large entry, in place of `head` and `rest`; or nil
-- head, rest: the bytes of the entry before and behind the time at which it is stored
-- size: of the entry in bytes
-- tiers: the channel of local tiers that may have the entry which this one replaces, or ''
-- start: of the channels of processes; '' if the channels are shard channels of the name
local lease, fence, entry, channel, failure, staged = unpack(KEYS)
local owner, granted, head, rest, size, ttl_ms, push_limit, start, tiers = unpack(ARGV)
local UNSTAGED, PUSHED, STORED, STORED_REFUSED = -1, 1, 2, 6

local stored_at = time_text()
local bytes = head .. stored_at .. rest

-- The usual case: the lease is as it was granted, but for a few ids behind it; its fence is the
-- last one; and the entry is pushed. It is written without further functions and without patterns:
-- a server whose caches are cold spends 20 us on them.
local value, own = redis.pcall('GET', lease), owner .. ':' .. granted
if type(value) == 'string' and (value == own or string.sub(value, 1, #own + 1) == own .. ',')
  and #value < 256 and ttl_ms ~= '0' and not staged
  and #bytes <= tonumber(push_limit) and redis.pcall('GET', fence) == granted
  and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok then
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. granted) end
  redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
  redis.call('DEL', lease, failure)
  local command = start == '' and 'SPUBLISH' or 'PUBLISH'
  local message = 'e' .. bytes
  for at = #own + 2, #value, 17 do
    local process = string.sub(value, at, at + 15)
    redis.pcall(command, start .. process, string.sub(lease, 1, -2) .. message)
  end
  local heard = redis.pcall(command, channel, message)
  return type(heard) == 'number' and STORED or STORED_REFUSED
end

local function commit_otherwise()
  local mine, last, is_committed = tonumber(granted), fence_at(fence)
  local _, stored = entry_at(entry)
  if last ~= mine then
    if stored > mine then return {'newer', redis.call('GET', entry), stored_at} end
    local holder, _, _, foreign = lease_at(lease)
    -- The lease stands if the server evicted the fence alone. It is lost with its registrations if
    -- the server lost its data. Any other lease is that of a later load.
    if holder == owner then
      publish_to_all(channel, end_lease(lease), 'w')
    elseif not holder and not foreign then
      publish(channel, 'w')
    end
    return 0
  end
  if stored == mine then return STORED end
  if is_committed then return PUSHED end
  if staged and tonumber(size) <= tonumber(push_limit) and redis.call('EXISTS', staged) == 0 then
    return UNSTAGED
  end

  local is_stored = false
  if ttl_ms ~= '0' then
    tell_tiers(tiers, lease, granted)
    if staged then
      is_stored = move_entry(staged, entry, ttl_ms, 20, stored_at)
    else
      is_stored = redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
    end
    -- A full server refuses the write. The entry that stands is older.
    if not is_stored then redis.pcall('DEL', entry) end
  end
  -- A commit that is sent twice is recognised, even if the entry that it wrote is gone.
  redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
  redis.call('DEL', failure)
  local registered = lease_at(lease) == owner and end_lease(lease) or ''
  publish_entry(channel, registered, not staged and bytes, push_limit,
    is_stored and { granted, size, entry })
  return (is_stored and STORED or PUSHED) + refused
end

local reply = commit_otherwise()
if staged then redis.pcall('DEL', staged) end
return reply
