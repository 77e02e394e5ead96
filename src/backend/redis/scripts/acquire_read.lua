-- Grants a reader its hold beside other readers, unless a writer holds the lock or is before the
-- reader in the queue. A reader that is not granted takes an entry in the queue.
--
-- Returns 0 if granted; {'held', fence or 0, ms left, holders} if not; {'again'} if the script is
-- to be called again.
--
-- writers: those in the queue
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
-- bits: of the ticket
local lease, queue, deadlines, readers, writers = unpack(KEYS)
local owner, lease_ms, entry_ms, bits = unpack(ARGV)

-- include: clock_ms, lease_at, holds_at, hold, extend_hold, take_entry, leave, first_alive
local at = now_ms()
local reading, _, foreign = holds_at(readers, at)
if foreign then return foreign end

if extend_hold(readers, owner, 1, at, lease_ms) then
  -- The lock may have been handed over to it while it waited.
  leave(queue, nil, owner)
  return 0
end

local writer, held, left
writer, held, left, foreign = lease_at(lease)
if foreign then return foreign end

local first, first_ms = first_alive(writers, deadlines, queue, at)
if first == AGAIN then return { 'again' } end
local ticket = first and redis.call('ZSCORE', queue, owner)
local behind = first
  and not (ticket and tonumber(ticket) < tonumber(redis.call('ZSCORE', writers, first)))

if not writer and not behind then
  hold(readers, owner, 1, at, lease_ms)
  leave(queue, nil, owner)
  return 0
end

if entry_ms ~= '0' then
  take_entry(queue, deadlines, nil, owner, at, entry_ms, bits)
end
left = writer and left or first_ms
return { 'held', writer and held or 0, left, writer and 1 or reading }
