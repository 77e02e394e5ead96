-- Grants a claim that fits beside the holders while no claim is before it in the queue; or again
-- to the owner that has it. A claim that is not granted takes an entry in the queue.
--
-- Returns the fence if granted, which is 0 for shared units; {'held', fence or 0, ms left, holders}
-- if not; {'again'} if the script is to be called again.
--
-- claim: see `read_entry` in `lib/queues.lua`
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
local lease, shared, fence, queue, deadlines = unpack(KEYS)
local claim, fence_ms, entry_ms = unpack(ARGV)
-- include: read_entry
local owner, units, limit, lease_ms, label = read_entry(claim)

-- The usual case: there is no holder and no queue.
-- include: clock_fence, set_lease
if not units and redis.call('EXISTS', lease, shared, queue) == 0 then
  local granted = clock_fence(fence, fence_ms)
  if granted then
    set_lease(lease, owner, granted, lease_ms, label)
    return tonumber(granted)
  end
end

-- include: clock_ms, lease_at, holds_at, extend_hold, renew_lease
local at = now_ms()
local holder, held, left, foreign = lease_at(lease)
if foreign then return foreign end
if holder == owner then
  -- It may have been handed over to it while it waited.
  redis.call('ZREM', queue, claim)
  renew_lease(lease, fence, lease_ms, fence_ms)
  return held
end

local out = 0
if not holder then
  out, left, foreign = holds_at(shared, at)
  if foreign then return foreign end
  if units and extend_hold(shared, owner, units, at, lease_ms) then
    redis.call('ZREM', queue, claim)
    return 0
  end
end

-- include: first_alive, grant, hold
-- How many units are to come back before the claim fits.
local missing = units and out + units - limit or out
if not holder and missing <= 0 then
  local first, first_ms = first_alive(queue, deadlines, at)
  if first == AGAIN then return { 'again' } end
  if not first or first == claim then
    local granted = 0
    if units then
      hold(shared, owner, units, at, lease_ms)
    else
      granted = grant(lease, fence, owner, lease_ms, fence_ms, 0, label)
    end
    redis.call('ZREM', queue, claim)
    return granted
  end
  left = first_ms
elseif not holder then
  local last = math.max(math.min(missing, out) - 1, 0)
  local range = { '(' .. at, '+inf', 'BYSCORE', 'LIMIT', last, 1, 'WITHSCORES' }
  left = (redis.call('ZRANGE', shared, unpack(range))[2] or at) - at
end

-- include: keep, kept_ms, out_of_memory
-- How soon a claim looks again that has no entry, in milliseconds.
local LOOK_MS = 100

-- Takes an entry in the queue, or keeps the one that the claim has, and the other entries of its
-- process. Its score is its ticket: the microsecond in which it was taken, or the next number
-- behind the last ticket of the queue.
--
-- A full server refuses the entry, and the claim does without it. No push tells it of a release
-- then, so it is to look again soon. Returns the milliseconds after which it is to look.
local function take_entry()
  local process = string.sub(claim, 1, 16)
  if redis.call('ZSCORE', queue, claim) then
    -- Lets a full server keep an entry: in a script that has written it lets all writes through,
    -- and this write needs no memory. An entry that its process had stopped to keep is taken anew.
    local is_kept = kept_ms(deadlines, claim, at) > 0
    redis.call('ZREM', is_kept and deadlines or queue, is_kept and process or claim)
  end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
  local add = { 'ZADD', queue, 'NX', math.max(now(), last + 1), claim }
  local refusal = redis.pcall(unpack(add))
  if type(refusal) == 'table' and string.find(refusal.err, OUT_OF_MEMORY, 1, true) then
    return math.min(left, LOOK_MS)
  end
  -- Fails if it was refused for another reason, such as by an ACL.
  if type(refusal) == 'table' then redis.call(unpack(add)) end
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  keep(deadlines, entry_ms)
  return left
end

return { 'held', held or 0, entry_ms == '0' and left or take_entry(), holder and 1 or out }
