-- Ends a lease, whatever the key holds. Returns how many sets of waiting processes it has had.
local function end_lease(lease)
  local value = redis.pcall('GET', lease)
  redis.call('DEL', lease)
  return type(value) == 'string' and #string.match(value, 'r*$') or 0
end
