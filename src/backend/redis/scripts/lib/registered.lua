-- A lease tells which processes wait for it. Behind its fence stand the ids of the first ones, each
-- after a comma. The ids of the others are in a set, since each claim reads the whole lease. An `r`
-- stands for each set that began: a server that evicts keys may evict the set alone.

-- Returns what stands behind the fence of a lease. It is '' if no process has registered.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(.*)$') or ''
end
