-- Makes the writer a reader in one step, and hands the lock over to the readers at the head of the
-- queue.
--
-- Returns 0 if granted, or nil if the writer does not have the lock any more; {'again'} if granted,
-- and the script is to be called again.
--
-- hands_over, handover_ms: as for `release_rw`
local lease, channel, fence, queue, deadlines, readers, writers = unpack(KEYS)
local writer, reader, lease_ms, hands_over, handover_ms, fence_ms = unpack(ARGV)

-- include: clock_ms, lease_at, holds_at, held_until, hold, next_rw_holders
local at = now_ms()
local holder, _, _, has_foreign = lease_at(lease)
if not held_until(readers, reader, at) then
  if holder ~= writer then return nil end
  local _, _, foreign = holds_at(readers, at)
  if foreign then return foreign end
  redis.call('DEL', lease)
  holder = nil
  hold(readers, reader, 1, at, lease_ms)
end
if holder or has_foreign then return 0 end
local to = {
  lease = lease, fence = fence, channel = channel,
  hands_over = hands_over, handover_ms = handover_ms, fence_ms = fence_ms,
}
local told = next_rw_holders(to, queue, deadlines, readers, writers, at)
return told == AGAIN and { 'again' } or 0
