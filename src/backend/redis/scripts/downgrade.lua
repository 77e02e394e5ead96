-- Makes the writer a reader in one step, and wakes the readers that wait.
--
-- Returns 0 if granted, or nil if the writer does not have the lock any more.
local lease, channel, queue, deadlines, readers, writers = unpack(KEYS)
local writer, reader, lease_ms = unpack(ARGV)

-- include: clock_ms, lease_at, holds_at, is_held, hold, first_in, publish, wake_queue
local at = now_ms()
if is_held(readers, reader, 1, at) then return 0 end
if lease_at(lease) ~= writer then return nil end
local _, _, foreign = holds_at(readers, at)
if foreign then return foreign end
redis.call('DEL', lease)
hold(readers, reader, 1, at, lease_ms)
local first = first_in(queue, deadlines, writers, at)
if first and not redis.call('ZSCORE', writers, first) then
  wake_queue(channel, queue)
  publish(channel, 'w')
end
return 0
