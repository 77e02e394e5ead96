-- A lease is `owner:fence`, and behind it a label, or what `registered_at` says.
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

