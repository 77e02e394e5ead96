-- Grants a lease with a new fence, and returns that as text. The fence is the time in microseconds,
-- or greater if the clock is behind the last fence or the fence of the stored entry. A full server
-- refuses the first write or none.
local function grant(lease, fence_key, owner, lease_ms, fence_ms, at_us, stored, label)
  local fence = digits(at_us)
  local last = read('SET', fence_key, fence, 'PX', fence_ms, 'GET')
  -- Data of another type is overwritten.
  if last == nil then redis.call('SET', fence_key, fence, 'PX', fence_ms) end
  local least = math.max(tonumber(string.match(last or '', '^%d+') or 0), stored) + 1
  if least > at_us then
    fence = digits(least)
    redis.call('SET', fence_key, fence, 'PX', fence_ms)
  end
  local value = owner .. ':' .. fence
  if label ~= '' then value = value .. ':' .. label end
  redis.call('SET', lease, value, 'PX', lease_ms)
  return fence
end

