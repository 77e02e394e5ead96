-- Ends a lease or a reader's hold if its owner has it, and the owner's queue entry. Hands the lease
-- over to the first claim in the queue, or notifies it of its turn.
--
-- Returns 1 if it was held or 0 if not, plus the bit of `publish` if it published.
--
-- readers, writers: of a read-write lock, nil for any other lock; the writers are in its queue
-- turn_ms: how long the lease is kept for an unordered claim whose turn was notified; the claim
--   loses its queue entry, so that the claim of a dead process is notified once
-- handover_ms: how long a lease that is handed over lasts; '0' if none is handed over
-- fresh_ms: an unordered claim that waited longer may reach its deadline before a handover ends
local lease, channel, queue, deadlines, fence, readers, writers = unpack(KEYS)
local owner, turn_ms, handover_ms, fence_ms, fresh_ms = unpack(ARGV)

-- The usual cases: the owner has the lease, and no claim waits, or the first one is handed the
-- lease or notified. Any other case goes on below, with the queue as it was. A read-write lock
-- comes here only if its queue is empty.
-- include: publish
local value = redis.pcall('GET', lease)
local is_owner = type(value) == 'string'
  and string.match(value, '^(%x+):%d*[1-9]%d*$') == owner
local popped = is_owner
  and (not readers and handover_ms ~= '0' or redis.call('EXISTS', queue) == 0)
  and redis.call('ZPOPMIN', queue)
if popped and not popped[1] then
  redis.call('DEL', lease)
  return 1 + publish(channel, 'w')
end

-- include: ticket_bits, clock_fence, set_lease, publish_to_process, handover_message
while popped and popped[1] do
  local waiter, ticket, time = popped[1], tonumber(popped[2]), redis.call('TIME')
  local turn_only, unordered = ticket_bits(ticket)
  local at = time[1] * 1000 + math.floor(time[2] / 1000)
  local waited, life, told, heard = at - math.floor(ticket / 1000), tonumber(handover_ms), nil, 0
  if not unordered or waited > tonumber(fresh_ms) then
    life = math.min(life, (redis.call('ZSCORE', deadlines, waiter) or 0) - at)
  end
  -- The owner may have an entry of its own, if the lease was handed over to it while it waited.
  if waiter == owner then life = 0 end

  -- Two cases are left to the code below: an ordered claim that is only notified, which keeps its
  -- entry, and a clock that is behind the last fence.
  local is_usual = unordered or not turn_only
  if life > 0 and is_usual then
    local granted, kept_ms, message = '0', turn_ms, 't' .. waiter
    if not turn_only then
      granted, kept_ms = clock_fence(fence, fence_ms, time), life
      is_usual = granted ~= nil
      message = is_usual and handover_message(granted, waiter, waited + life)
    end
    if is_usual then told, heard = publish_to_process(channel, waiter, message) end
    if heard > 0 then
      set_lease(lease, waiter, granted, kept_ms)
      redis.call('ZREM', deadlines, waiter)
      return 1 + told
    end
  end

  -- An ordered claim keeps its entry, and so does each claim if the server refuses to publish.
  if life > 0 and (not unordered or not is_usual or told == REFUSED) then
    redis.call('ZADD', queue, popped[2], waiter)
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', deadlines), 1))
    break
  end
  redis.call('ZREM', deadlines, waiter)
  popped = redis.call('ZPOPMIN', queue)
  if not popped[1] then
    redis.call('DEL', lease)
    return 1 + publish(channel, 'w')
  end
end

-- include: clock_ms, lease_at, leave, first_in, holds_at, is_held, grant
local was_held = 0
local holder, held, _, foreign = lease_at(lease)
local had_entry = leave(queue, deadlines, writers, owner)
if holder == owner then
  redis.call('DEL', lease)
  if held > 0 then was_held = 1 end
else
  if readers then
    if is_held(readers, owner, 1, now_ms()) then was_held = 1 end
    redis.call('ZREM', readers, owner)
  end
  -- A value that is no lease stays as it is. The next claim reports it.
  if holder or foreign then return was_held end
  -- A claim without an entry may have been notified of its turn, and leave instead of asking.
  if was_held == 0 and not had_entry and redis.call('EXISTS', queue) == 0 then return was_held end
end

if redis.call('EXISTS', queue) == 0 then return was_held + publish(channel, 'w') end
local at = now_ms()

-- Hands the lease over, and takes it back if no client hears of it. Returns what `publish` returns,
-- or nil if the entry has no time left or a full server refuses the lease.
local function hand_over(waiter, kept_ms, ticket)
  local life = math.min(kept_ms, tonumber(handover_ms))
  if life < 1 then return nil end
  local is_granted, granted = pcall(grant, lease, fence, waiter, life, fence_ms)
  if not is_granted then return nil end
  local ends = at - math.floor(ticket / 1000) + life
  local message = handover_message(fence_text(granted), waiter, ends)
  local told, heard = publish_to_process(channel, waiter, message)
  if heard > 0 then leave(queue, deadlines, writers, waiter) else redis.call('DEL', lease) end
  return told, heard
end

local first, kept_ms, ticket = first_in(queue, deadlines, writers, at)
-- A reader at the head of the queue ends the loop: the wake-ups below reach all readers.
while first and (not writers or redis.call('ZSCORE', writers, first)) do
  if readers and holds_at(readers, at) ~= 0 then return was_held end
  local turn_only, unordered = ticket_bits(ticket)
  local told, heard
  if not turn_only and handover_ms ~= '0' then told, heard = hand_over(first, kept_ms, ticket) end
  local is_handed = told ~= nil
  if not is_handed then
    told, heard = publish_to_process(channel, first, 't' .. first)
  end
  if told == REFUSED or not unordered or is_handed and heard > 0 then return was_held + told end
  leave(queue, deadlines, writers, first)
  if not is_handed and heard > 0 then
    pcall(set_lease, lease, first, '0', turn_ms)
    return was_held + told
  end
  first, kept_ms, ticket = first_in(queue, deadlines, writers, at)
end
-- include: wake_queue
if first then wake_queue(channel, queue) end
return was_held + publish(channel, 'w')
