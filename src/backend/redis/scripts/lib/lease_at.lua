-- include: read

-- Reads the lease `owner:fence` under a key, with what `registered` says of it behind.
-- Returns the owner, the fence and the milliseconds left; or nil if it is free. The fence is 0 if
-- the lease is kept for a waiter that was notified of its turn. Any other value is an error, the
-- fourth result: a script neither waits for it nor overwrites it. The fifth result is the value.
local function lease_at(key)
  local value = read('GET', key)
  if value == false then return nil end
  local owner, fence
  if value then owner, fence = string.match(value .. ',', '^(%x+):(%d+),[,%x]*r*,?$') end
  local left = owner and redis.call('PTTL', key) or -1
  if left < 0 then
    local what = key .. ' holds something that is not a lease'
    return nil, nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  return owner, tonumber(fence), left, nil, value
end
