-- Grants a claim that fits beside the holders if no living claim is before it in the queue, or
-- renews what its owner has. A claim that is not granted takes an entry in the queue.
-- Returns the fence if granted, which is 0 for shared units; {'again'} if the script is to be
-- called again; or {'held', the fence of the sole holder or 0, ms, holders}. The milliseconds last
-- until the first holder ends, or until the process of the first claim is taken for dead.
-- claim: see `read_entry` in `lib/queues.lua`
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
local lease, shared, fence, queue, deadlines = unpack(KEYS)
local claim, fence_ms, entry_ms = unpack(ARGV)
local owner, units, limit, lease_ms, label = read_entry(claim)

-- The usual case: there is no holder and no queue.
if not units and redis.call('EXISTS', lease, shared, queue) == 0 then
  return grant(lease, fence, owner, lease_ms, fence_ms, 0, label)
end

local at = now_ms()
local holder, holder_fence, left = lease_at(lease)
local out = 0
if not holder then out, left = holds_at(shared, at) end
if holder == owner
  or units and not holder and extend_hold(shared, owner, units, at, lease_ms) then
  redis.call('ZREM', queue, claim)
  if holder then renew_lease(lease, fence, lease_ms, fence_ms) end
  return holder_fence or 0
end

if not holder and fits(out, units, limit) then
  local first, first_ms = first_alive(queue, deadlines, at)
  if first == AGAIN then return { 'again' } end
  if not first or first == claim then
    local granted = 0
    if units then
      hold(shared, owner, units, at, lease_ms)
    else
      granted = grant(lease, fence, owner, lease_ms, fence_ms, 0, label)
    end
    -- Not before the grant, which a full server is to refuse: see `is_full`.
    redis.call('ZREM', queue, claim)
    return granted
  end
  left = first_ms
end

local held = { 'held', holder_fence or 0, left, holder and 1 or out }
if entry_ms == '0' then return held end

-- An entry keeps the place of its claim. Its score is its ticket: the microsecond in which it was
-- taken, or the next number behind the last ticket of the queue.
local process = string.sub(claim, 1, 16)
if redis.call('ZSCORE', queue, claim) then
  -- What is removed is added again below, also on a full server. An entry whose deadline has passed
  -- gets a new ticket.
  local is_alive = deadline_in(deadlines, claim, at) > 0
  redis.call('ZREM', is_alive and deadlines or queue, is_alive and process or claim)
end
local last_ticket = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
if is_full('ZADD', queue, 'NX', math.max(now(), last_ticket + 1), claim) then
  -- No push tells the claim of a release then.
  held[3] = math.min(left, LOOK_MS)
  return held
end
keep(queue, entry_ms)
redis.call('ZADD', deadlines, at + entry_ms, process)
keep(deadlines, entry_ms)
return held
