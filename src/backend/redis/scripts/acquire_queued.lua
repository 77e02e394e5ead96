-- Grants a lease to one holder: of a mutex, of a fair mutex, or the writer of a read-write lock. A
-- claim that is not granted takes an entry in the queue. Fair claims and writers are granted in the
-- order of their queue. An unordered claim is granted when it asks and the lease is free; its entry
-- only orders handovers and turns. A lease whose turn was notified is kept for its waiter, with the
-- fence 0.
--
-- Returns the fence if granted; {'held', fence or 0, ms left, holders} if not; {'again'} if the
-- script is to be called again.
--
-- queue: the one in which the claim waits
-- readers, writers: of a read-write lock, nil for any other lock; the writers are in its queue
-- is_ordered: '1' if the claim is held to the order of its queue
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
-- bits: of the ticket
local lease, fence, queue, deadlines, readers, writers = unpack(KEYS)
local owner, lease_ms, fence_ms, is_ordered, entry_ms, bits = unpack(ARGV)

-- The usual cases: there is no lease and no queue, or the lease is kept for this claim.
-- include: clock_fence, set_lease
local taken = readers and redis.call('EXISTS', lease, queue, readers)
  or redis.call('EXISTS', lease, queue)
if taken == 0 or redis.pcall('GET', lease) == owner .. ':0' then
  local granted = clock_fence(fence, fence_ms, redis.call('TIME'))
  if granted then
    set_lease(lease, owner, granted, lease_ms)
    return tonumber(granted)
  end
end

-- include: lease_at, clock_ms, take_entry, take_entry_or_look, leave, first_alive, holds_at
-- include: grant, renew_lease
local holder, held, left, foreign = lease_at(lease)
if foreign then return foreign end

local is_its_turn = holder == owner and held == 0
if is_its_turn then holder = nil end

if holder == owner then
  -- The lease may have been handed over to it while it waited.
  leave(queue, writers, owner)
  renew_lease(lease, fence, lease_ms, fence_ms)
  return held
end

local at = now_ms()
local reading, reading_ms, first, first_ms = 0, 0, nil, 0
if is_ordered == '1' then
  if readers then
    reading, reading_ms, foreign = holds_at(readers, at)
    if foreign then return foreign end
  end
  first, first_ms = first_alive(queue, deadlines, writers, at)
  if first == AGAIN then return { 'again' } end
end

if not holder and reading == 0 and (is_its_turn or not first or first == owner) then
  local granted = grant(lease, fence, owner, lease_ms, fence_ms)
  leave(queue, writers, owner)
  return granted
end

if entry_ms ~= '0' then
  local entry = { queue, deadlines, writers, owner, at, entry_ms, bits }
  if is_ordered == '1' then
    take_entry(unpack(entry, 1, 7))
  else
    left = take_entry_or_look(left, unpack(entry, 1, 7))
  end
end
local holders = holder and 1 or reading
left = holder and left or reading > 0 and reading_ms or first_ms
return { 'held', holder and held or 0, left, holders }
