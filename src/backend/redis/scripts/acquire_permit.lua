-- Grants `count` permits, while at most `limit` are out and no claim is before this one in the
-- queue; or again to the owner that has them. A claim that is not granted takes an entry in the
-- queue.
--
-- Returns 0 if granted; {'held', 0, ms left, permits out} if not: until enough permits may be back,
-- or until the first queue entry ends; {'again'} if the script is to be called again.
--
-- entry_ms: how long the queue entry is kept; '0' if the claim takes none
-- bits: of the ticket
local permits, queue, deadlines = unpack(KEYS)
local owner, lease_ms, entry_ms, bits = unpack(ARGV)
local limit, count = tonumber(ARGV[5]), tonumber(ARGV[6])

-- include: clock_ms, holds_at, hold, extend_hold
local at = now_ms()
local out, _, foreign = holds_at(permits, at)
if foreign then return foreign end

local claim = owner .. ':' .. count .. ':' .. limit
local has_queue = redis.call('EXISTS', queue) == 1
if extend_hold(permits, owner, count, at, lease_ms) then
  -- The permits may have been handed over to it while it waited.
  if has_queue then redis.call('ZREM', queue, claim) end
  return 0
end
if not has_queue and out + count <= limit then
  hold(permits, owner, count, at, lease_ms)
  return 0
end

-- include: first_alive, take_entry
local first, first_ms = first_alive(queue, deadlines, nil, at)
if first == AGAIN then return { 'again' } end
if out + count <= limit and (not first or first == claim) then
  hold(permits, owner, count, at, lease_ms)
  redis.call('ZREM', queue, claim)
  return 0
end

if entry_ms ~= '0' then
  take_entry(queue, deadlines, nil, claim, at, entry_ms, bits)
end
local left = first_ms
if out + count > limit then
  local needed = math.min(out, out + count - limit) - 1
  local ends = redis.call(
    'ZRANGE', permits, '(' .. at, '+inf', 'BYSCORE', 'LIMIT', needed, 1, 'WITHSCORES')[2]
  left = ends and tonumber(ends) - at or 0
end
return { 'held', 0, left, out }
