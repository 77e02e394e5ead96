-- The processes that wait for a load.

-- part: registered
-- A lease tells which processes wait for it. Behind its fence stand the ids of the first ones, each
-- after a comma. The ids of the others are in a set, since each claim reads the whole lease. An `r`
-- stands for each set that began: a server that evicts keys may evict the set alone.

-- Returns what stands behind the fence of a lease. It is '' if no process has registered.
local function registered_at(lease)
  local value = redis.pcall('GET', lease)
  return type(value) == 'string' and string.match(value, '^%x+:%d+(.*)$') or ''
end

-- part: register
-- include: keep, out_of_memory

-- How soon a claim looks again that could not be registered, in milliseconds.
local LOOK_MS = 100
-- The value of a lease is shorter than this while another id may be added to it.
local ROOM = 160

-- Registers a process that waits for the load of the holder, as `registered` tells: in the lease,
-- or in the set if the lease has no room. The set lasts a second longer than the lease, after whose
-- end the process asks again. Returns after how many milliseconds the claim is to look again: a
-- full server refuses the registration. Any other refusal is the second result.
--
-- value: of the lease
local function register(lease, value, processes, process, left)
  local id = ',' .. process
  if string.find(value, id, 1, true) then return left end
  local is_listed = #value < ROOM
  local added
  if is_listed then
    added = redis.pcall('APPEND', lease, id)
  else
    added = redis.pcall('SADD', processes, process)
  end
  if type(added) == 'table' then
    if string.find(added.err, OUT_OF_MEMORY, 1, true) then return math.min(left, LOOK_MS) end
    return nil, added
  end
  if is_listed then return left end
  if string.sub(value, -1) ~= 'r' or redis.call('PTTL', processes) < 0 then
    redis.call('APPEND', lease, 'r')
  end
  keep(processes, left + 1000)
  return left
end
