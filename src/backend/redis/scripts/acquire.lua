-- Grants a claim that fits beside the holders while no claim is before it in the queue; or again
-- to the owner that has it. A claim that is not granted takes an entry in the queue.
-- Returns the fence if granted, which is 0 for shared units; {'held', fence or 0, ms left, holders}
-- if not; {'again'} if the script is to be called again.
-- claim: see `read_entry` in `lib/queues.lua`
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
local lease, shared, fence, queue, deadlines = unpack(KEYS)
local claim, fence_ms, entry_ms = unpack(ARGV)
local owner, units, limit, lease_ms, label = read_entry(claim)

-- The usual case: there is no holder and no queue.
if not units and redis.call('EXISTS', lease, shared, queue) == 0 then
  local granted = clock_fence(fence, fence_ms)
  if granted then
    set_lease(lease, owner, granted, lease_ms, label)
    return tonumber(granted)
  end
end

local at = now_ms()
local holder, held, left, foreign = lease_at(lease)
local out = 0
if not holder and not foreign then out, left, foreign = holds_at(shared, at) end
if foreign then return foreign end
local is_mine = holder == owner
  or not holder and units and extend_hold(shared, owner, units, at, lease_ms)
if is_mine then
  -- It may have been handed over to it while it waited.
  redis.call('ZREM', queue, claim)
  if holder then renew_lease(lease, fence, lease_ms, fence_ms) end
  return held or 0
end

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
    -- Not before: a full server lets all writes through in a script that has written.
    redis.call('ZREM', queue, claim)
    return granted
  end
  left = first_ms
elseif not holder then
  local last = math.max(math.min(missing, out) - 1, 0)
  local range = { '(' .. at, '+inf', 'BYSCORE', 'LIMIT', last, 1, 'WITHSCORES' }
  left = (redis.call('ZRANGE', shared, unpack(range))[2] or at) - at
end

-- An entry keeps the place of its claim. Its score is its ticket: the microsecond in which it was
-- taken, or the next number behind the last ticket of the queue.
local function enter_queue()
  local process = string.sub(claim, 1, 16)
  if redis.call('ZSCORE', queue, claim) then
    -- Needs no memory. A full server lets all writes through in a script that has written. An entry
    -- that its process had stopped to keep is taken anew.
    local is_kept = kept_ms(deadlines, claim, at) > 0
    redis.call('ZREM', is_kept and deadlines or queue, is_kept and process or claim)
  end
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
  if is_full('ZADD', queue, 'NX', math.max(now(), last + 1), claim) then
    -- No push tells the claim of a release then.
    left = math.min(left, LOOK_MS)
    return
  end
  keep(queue, entry_ms)
  redis.call('ZADD', deadlines, at + entry_ms, process)
  keep(deadlines, entry_ms)
end
if entry_ms ~= '0' then enter_queue() end
return { 'held', held or 0, left, holder and 1 or out }
