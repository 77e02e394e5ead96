-- include: keep, out_of_memory, registered

-- How soon a claim looks again that could not be registered, in milliseconds.
local LOOK_MS = 100

-- Registers a process that waits for the load of the holder. The registration lasts a second longer
-- than the lease, after whose end the process asks again. Returns after how many milliseconds the
-- claim is to look again: a full server refuses the registration. Any other refusal is the second
-- result.
local function register(lease, processes, process, left)
  local added = redis.pcall('SADD', processes, process)
  if type(added) == 'table' then
    if string.find(added.err, OUT_OF_MEMORY, 1, true) then return math.min(left, LOOK_MS) end
    return nil, added
  end
  if redis.call('PTTL', processes) < 0 then redis.call('APPEND', lease, REGISTERED) end
  keep(processes, left + 1000)
  return left
end
