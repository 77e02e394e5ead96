-- The lease of one holder.

-- part: lease_at
-- include: read

-- Reads the lease `owner:fence` under a key. Behind it stands a label, or what `registered` says.
-- Returns the owner, the fence and the milliseconds left; or nil if it is free. Any other value is
-- an error, the fourth result: a script neither waits for it nor overwrites it. The fifth result is
-- the value.
local function lease_at(key)
  local value = read('GET', key)
  if value == false then return nil end
  local owner, fence
  if value then owner, fence = string.match(value, '^(%x+):(%d+)%f[:,%z]') end
  local left = owner and redis.call('PTTL', key) or -1
  if left < 0 then
    local what = key .. ' holds something that is not a lease'
    return nil, nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  return owner, tonumber(fence), left, nil, value
end

-- part: set_lease
-- Writes a lease, with the label of its process if there is one. The fence is text.
local function set_lease(key, owner, fence, lease_ms, label)
  local value = owner .. ':' .. fence
  if label and label ~= '' then value = value .. ':' .. label end
  return redis.call('SET', key, value, 'PX', lease_ms)
end

-- part: renew_lease
-- Makes a lease and the fence last their full times from now. A full server lets both through.
local function renew_lease(lease, fence_key, lease_ms, fence_ms)
  redis.call('PEXPIRE', lease, lease_ms)
  redis.call('PEXPIRE', fence_key, fence_ms)
end

-- part: end_lease
-- include: registered

-- Ends a lease, whatever the key holds. Returns which processes were registered, as
-- `registered_at` does.
local function end_lease(lease)
  local registered = registered_at(lease)
  redis.call('DEL', lease)
  return registered
end

-- part: registered
-- The ids of the backends that wait for a load stand behind the fence of its lease, each after a
-- comma. An id is the name of a channel.

-- Returns the ids behind the fence of a lease. It is '' if no backend has registered.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(,.*)$') or ''
end
