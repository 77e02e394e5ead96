-- The backends that wait for a load. Their ids stand behind the fence of its lease, each after a
-- comma. An id is the name of a channel.

-- part: registered
-- Returns the ids behind the fence of a lease. It is '' if no backend has registered.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(,.*)$') or ''
end

-- part: register
-- include: out_of_memory

-- How soon a claim looks again that could not be registered, in milliseconds.
local LOOK_MS = 100

-- Registers a backend that waits for the load of the holder. Returns after how many milliseconds
-- the claim is to look again: a full server refuses the registration. Any other refusal is the
-- second result.
--
-- value: of the lease
local function register(lease, value, process, left)
  if string.find(value, ',' .. process, 1, true) then return left end
  local added = redis.pcall('APPEND', lease, ',' .. process)
  if type(added) ~= 'table' then return left end
  if string.find(added.err, OUT_OF_MEMORY, 1, true) then return math.min(left, LOOK_MS) end
  return nil, added
end
