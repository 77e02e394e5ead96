-- Ends all holds and removes the queue, whatever the keys hold, and wakes the waiters. Returns 1 if
-- there was something to remove, or 0.
-- KEYS: the channel, the deadlines of the processes in the queue, the lease, and for a lock the
-- shared units and the queue
-- ARGV: '1' for a lock
local channel, deadlines, lease, shared = unpack(KEYS, 1, 4)

if ARGV[1] == '1' then
  -- Notifies the processes of the holders. The first member of a shared hold is its owner.
  local owners = redis.pcall('ZRANGE', shared, 0, 5 * BATCH)
  local value = redis.pcall('GET', lease)
  if type(value) == 'string' then owners[#owners + 1] = string.match(value, '^(%x+):') end
  for _, owner in ipairs(owners) do
    if #owner == 32 then publish_to_process(channel, owner, 'l' .. owner) end
  end
  -- Wakes the processes that keep entries in the queue, if their number is not absurd. In a cluster
  -- all of them listen to the channel of the name.
  if not string.find(channel, '}:s', 1, true) then
    local processes = redis.pcall('ZRANGE', deadlines, 0, 5 * BATCH)
    for _, process in ipairs(processes) do publish_to_process(channel, process, 'w') end
  end
end
publish_to_all(channel, registered_at(lease), 'w')
-- A long queue is freed after the script.
local removed = redis.call('UNLINK', unpack(KEYS, 3))
redis.call('UNLINK', deadlines)
return removed > 0 and 1 or 0
