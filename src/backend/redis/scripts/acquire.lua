local entry = table.concat({ owner, need, limit, lease_ms, label }, ':')
local at_us = now()
local at = math.floor(at_us / 1000)
local holder, holder_fence, left = lease_at(lease)
local out = holder and 0 or count_holds(shared, at)
if holder == owner
  or units and out > 0 and extend_hold(shared, owner, units, at, lease_ms) then
  redis.call('ZREM', queue, entry)
  if holder then renew_lease(lease, fence, lease_ms, fence_ms) end
  return holder_fence or 0
end

if not holder and fits(out, units, limit) then
  local first, first_ms = first_alive(queue, deadlines, at)
  if first == AGAIN then return { 'again' } end
  if not first or first == entry then
    local granted = 0
    if units then
      hold(shared, owner, units, at, lease_ms)
    else
      granted = tonumber(grant(lease, fence, owner, lease_ms, fence_ms, at_us, 0, label))
    end
    -- Not before the grant, which a full server is to refuse: see `is_full`.
    if first then redis.call('ZREM', queue, entry) end
    return granted
  end
  left = first_ms
elseif not holder then
  left = first_end(shared, at)
end

local held = { 'held', holder_fence or 0, left, holder and 1 or out }
if entry_ms == '0' then return held end

-- An entry keeps the place of its claim. Its score is its ticket: the microsecond in which it was
-- taken, or the next number behind the last ticket of the queue.
local process = string.sub(owner, 1, 16)
if redis.call('ZSCORE', queue, entry) then
  -- What is removed is added again below, also on a full server. An entry whose deadline has passed
  -- gets a new ticket.
  local is_alive = deadline_in(deadlines, process, at) > 0
  redis.call('ZREM', is_alive and deadlines or queue, is_alive and process or entry)
end
local last_ticket = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
if is_full('ZADD', queue, 'NX', math.max(at_us, last_ticket + 1), entry) then
  -- No push tells the claim of a release then.
  held[3] = math.min(left, LOOK_MS)
  return held
end
keep(queue, entry_ms)
redis.call('ZADD', deadlines, deadline(at, entry_ms), process)
keep(deadlines, entry_ms)
return held
