-- Returns the ids of the backends that wait for a load, or ''. They stand behind the fence of its
-- lease, each after a comma, and name the channels of the backends.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(,.*)$') or ''
end

