-- The waiters for a name: for a sole hold, or for shared units.

-- A queue entry has the owner of a claim, its need, its limit, the milliseconds of its lease, and
-- the label of its process. The need is a number of shared units, of which at most `limit` may be
-- out; or a sole hold: `x`, which is dropped if its process does not hear of its grant, or `f`,
-- which then stays first until the deadline of its process.
-- Returns the owner, the units or nil, the limit, the milliseconds, the label, and the need.
local function read_entry(claim)
  local owner, need, limit, lease_ms, label =
    string.match(claim, '^(%x+):(%w+):(%d+):(%d+):(.*)$')
  return owner, tonumber(need), limit, lease_ms, label, need
end

-- Returns in how many milliseconds the process of a claim is taken for dead, or 0 or less. It has
-- one deadline for all of its entries in a queue.
local function deadline_in(deadlines, claim, at)
  return (redis.call('ZSCORE', deadlines, string.sub(claim, 1, 16)) or 0) - at
end

-- Returns the claim at a place of a queue, and its ticket.
local function claim_at(queue, index)
  return unpack(redis.call('ZRANGE', queue, index - 1, index - 1, 'WITHSCORES'))
end

-- Returns the first claim in a queue whose process is alive, and in how many milliseconds that is
-- taken for dead; or nil. Removes the entries before it. Returns AGAIN after a batch of dead ones.
local function first_alive(queue, deadlines, at)
  local dead = {}
  for index = 1, BATCH do
    local claim = claim_at(queue, index)
    local left = claim and deadline_in(deadlines, claim, at)
    if not claim or left > 0 then
      if dead[1] then redis.call('ZREM', queue, unpack(dead)) end
      return claim, left
    end
    dead[index] = claim
  end
  redis.call('ZREM', queue, unpack(dead))
  return AGAIN
end

-- How long a lease lasts that is handed over, unless it is renewed.
local HANDOVER_MS = 2000
-- How many units one script takes back and hands over. A single claim may be for more.
local UNITS = 500

-- Grants what is free to the claims at the head of the queue, in their order and while they fit.
-- There must be no sole holder. Each claim is told its fence, and how many milliseconds lie between
-- its ticket and the end of its lease. A claim whose process does not hear of that keeps its place,
-- or is dropped: `read_entry`. The claims of dead processes are dropped.
-- Returns AGAIN or 0; the milliseconds until a claim that fits and does not hear of it is dropped,
-- or nil; and whether a claim hears.
-- KEYS: the lease, the shared units, the fence, the queue, the deadlines, and the channel
-- returned: the units that the script has taken back
local function grant_next(at, fence_ms, returned)
  local lease, shared, fence, queue, deadlines, channel = unpack(KEYS)
  local out = holds_at(shared, at)
  local gone, moved, again = {}, returned, 0
  local is_heard, unheard_ms, stamp = false, nil, nil
  for index = 1, BATCH do
    local claim, ticket = claim_at(queue, index)
    if not claim then
      if not is_heard and #gone == index - 1 then redis.call('DEL', deadlines) end
      break
    end
    local owner, units, limit, lease_ms, label, need = read_entry(claim)
    local left, life = deadline_in(deadlines, claim, at), math.min(HANDOVER_MS, lease_ms)
    if left <= 0 then
      gone[#gone + 1] = claim
    elseif not fits(out, units, limit) then
      break
    elseif units and moved > 0 and moved + units > UNITS then
      again = AGAIN
      break
    else
      -- The time stands for the fence of units: a push that is older than another holder is known
      -- by it.
      stamp = units and (stamp or now())
      local given = stamp or grant(lease, fence, owner, life, fence_ms, 0, label)
      local ends = math.max(at - math.floor(ticket / 1000) + life, 0)
      local message = 'g' .. fence_text(given) .. owner .. ends
      local hears = publish_to_process(channel, owner, message) > 0
      if units then
        out, moved = out + units, moved + units
        if hears then hold(shared, owner, units, at, life) end
      elseif not hears then
        redis.call('DEL', lease)
      end
      is_heard = is_heard or hears
      -- If an ACL refuses the push, that says nothing of the process.
      if hears or need == 'x' and refused == 0 then
        gone[#gone + 1] = claim
      else
        unheard_ms = math.min(unheard_ms or left, left)
      end
      if not units and (hears or unheard_ms) then break end
    end
    if index == BATCH then again = AGAIN end
  end
  if gone[1] then redis.call('ZREM', queue, unpack(gone)) end
  -- Another call would find the same.
  if not is_heard and not gone[1] and returned == 0 then again = 0 end
  return again, unheard_ms, is_heard
end
