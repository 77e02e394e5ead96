-- The lease of one holder: `owner:fence`, and behind it a label, or what `registered_at` says.

-- Returns the owner of a lease, the fence, the milliseconds left, and the value; or nil if it is
-- free.
local function lease_at(key)
  local value = read('GET', key)
  if value == false then return nil end
  local owner, fence
  if value then owner, fence = string.match(value, '^(%x+):(%d+)%f[:,%z]') end
  local left = owner and redis.call('PTTL', key) or -1
  if left < 0 then fail_foreign(key, 'a lease') end
  return owner, tonumber(fence), left, value
end

-- Returns whether an owner has a lease, whatever else the key may hold.
local function is_held_by(lease, owner)
  return string.find(read('GET', lease) or '', owner .. ':', 1, true) == 1
end

-- Writes a lease, with the label of its process if there is one. The fence is text.
local function set_lease(key, owner, fence, lease_ms, label)
  local value = owner .. ':' .. fence
  if label and label ~= '' then value = value .. ':' .. label end
  return redis.call('SET', key, value, 'PX', lease_ms)
end

-- Makes the fence, then a lease last their full times from now. A full server lets both through.
local function renew_lease(lease, fence_key, lease_ms, fence_ms)
  redis.call('PEXPIRE', fence_key, fence_ms)
  redis.call('PEXPIRE', lease, lease_ms)
end

-- Grants a lease with a new fence, greater than `stored`, and returns that. A full server refuses
-- the first write or none.
local function grant(lease, fence_key, owner, lease_ms, fence_ms, stored, label)
  local fence = next_fence(fence_at(fence_key), stored)
  local text = fence_text(fence)
  set_lease(lease, owner, text, lease_ms, label)
  redis.call('SET', fence_key, text, 'PX', fence_ms)
  return fence
end

-- Returns the ids of the backends that wait for a load, or ''. They stand behind the fence of its
-- lease, each after a comma, and name the channels of the backends.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(,.*)$') or ''
end

-- Ends a lease, whatever the key holds, and returns the ids of those that were registered.
local function end_lease(lease)
  local registered = registered_at(lease)
  redis.call('DEL', lease)
  return registered
end
