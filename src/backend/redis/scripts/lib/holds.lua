-- The holders of a semaphore.

-- part: held_until
-- include: read

-- Returns the millisecond in which a hold ends, or nil if it has ended or never was. All members of
-- a hold end together: see `write_hold`.
local function held_until(set, owner, at)
  local ends = tonumber(read('ZSCORE', set, owner) or 0)
  return ends > at and ends or nil
end

-- part: holds_at
-- include: read

-- Counts the holds in a sorted set. A hold is a member, and its score the millisecond in which it
-- ends. Returns how many there are, and the milliseconds until the last one ends. Any other key is
-- an error, the third result.
local function holds_at(set, at)
  local count = read('ZCOUNT', set, '(' .. at, '+inf')
  if not count then
    local what = set .. ' holds data that is not a set of permits or readers'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  if redis.call('PTTL', set) == -1 then
    local what = set .. ' holds something that never ends'
    return nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  if count == 0 then return 0, 0 end
  return count, redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] - at
end

-- part: hold
-- include: batch, keep, write_hold

-- Makes a new hold last this long from now, and the set with it. Removes ended holds.
local function hold(set, owner, count, at, life_ms)
  write_hold(set, owner, count, at + life_ms)
  keep(set, life_ms)
  local ended = redis.call('ZRANGE', set, '-inf', at, 'BYSCORE', 'LIMIT', 0, BATCH)
  if ended[1] then redis.call('ZREM', set, unpack(ended)) end
end

-- part: extend_hold
-- include: held_until, write_hold

-- Makes a hold that stands last its full time from now. Returns whether it stands. A hold without
-- all of its members does not stand, and none of them is revived.
local function extend_hold(set, owner, count, at, life_ms)
  local ends, score = held_until(set, owner, at), at + life_ms
  if not ends then return false end
  -- A member that has this score already would not count as changed.
  if score == ends then score = score + 1 end
  -- Lets a full server do so: in a script that has written it lets all writes through, and this
  -- write needs no memory.
  redis.call('PEXPIRE', set, math.max(life_ms, redis.call('PTTL', set)))
  if write_hold(set, owner, count, score, 'XX', 'CH') == count then return true end
  write_hold(set, owner, count, ends, 'XX')
  return false
end

-- part: write_hold
-- Writes all members of a hold with one score, after these options of ZADD. Returns its reply.
-- Nothing else gives members a score. So they end together, and the first, the owner, tells when.
local function write_hold(set, owner, count, score, ...)
  local words, start = { ... }, owner .. ':'
  -- A command makes a text of a number each time that it stands there.
  score = string.format('%.0f', score)
  for index = 1, count do
    words[#words + 1] = score
    words[#words + 1] = index == 1 and owner or start .. index
  end
  return redis.call('ZADD', set, unpack(words))
end

-- part: grant
-- include: fence_text, fence_at, next_fence, set_lease

-- Grants a lease with a new fence, greater than `stored`. Returns the fence. A full server refuses
-- the first write, or none, for in a script that has written it lets all writes through.
local function grant(lease, fence_key, owner, lease_ms, fence_ms, stored, label)
  local fence = next_fence(fence_at(fence_key), stored)
  local text = fence_text(fence)
  set_lease(lease, owner, text, lease_ms, label)
  redis.call('SET', fence_key, text, 'PX', fence_ms)
  return fence
end

-- part: grant_next
-- include: batch, again, kept_ms, holds_at, hold, grant, fence_text, clock, publish_to_process
-- include: read_entry

-- How long a lease lasts that is handed over, unless it is renewed.
local HANDOVER_MS = 2000
-- How many units one script takes back and hands over. A single claim may be for more.
local UNITS = 500

-- Returns a waiter, and after how many milliseconds from its ticket its lease ends. The waiter
-- knows when it took the ticket.
local function handover(owner, ticket, life, at)
  return owner .. math.max(at - math.floor(ticket / 1000) + life, 0)
end

-- Grants what is free to the claims at the head of the queue, in their order and while they fit.
-- There must be no sole holder. A process gets one message for all of its shared claims.
--
-- A claim whose process does not hear of its grant keeps its place, or is passed over: see
-- `read_entry`. No claim keeps its place whose process has stopped to keep its entries.
--
-- Returns AGAIN if the script is to be called again, or 0; the milliseconds until the entry of a
-- claim ends that fits and does not hear of it, or nil; whether a claim hears; and an error if the
-- key does not hold units.
--
-- KEYS: the lease, the shared units, the fence, the queue, the deadlines, and the channel
-- returned: the units that the script has taken back
local function grant_next(at, fence_ms, returned)
  local lease, shared, fence, queue, deadlines, channel = unpack(KEYS)
  local out, _, foreign = holds_at(shared, at)
  if foreign then return 0, nil, false, foreign end

  local groups, gone, moved, again = {}, {}, returned, 0
  local is_heard, unheard_ms, is_empty = false, nil, false
  local heads = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  for index = 1, BATCH do
    -- Most heads are the only ones to look at, and the others are read together.
    if index == 2 then heads = redis.call('ZRANGE', queue, 0, BATCH - 1, 'WITHSCORES') end
    local claim, ticket = heads[2 * index - 1], heads[2 * index]
    if not claim then
      is_empty = not groups[1]
      break
    end
    local owner, units, limit, lease_ms, label, need = read_entry(claim)
    local left, life = kept_ms(deadlines, claim, at), math.min(HANDOVER_MS, lease_ms)
    local text = handover(owner, ticket, life, at)
    if left <= 0 then
      gone[#gone + 1] = claim
    elseif units and out + units > tonumber(limit) or not units and out > 0 then
      break
    elseif not units then
      local granted = fence_text(grant(lease, fence, owner, life, fence_ms, 0, label))
      is_heard = publish_to_process(channel, owner, 'g' .. granted .. text) > 0
      if not is_heard then redis.call('DEL', lease) end
      if not is_heard and (need == 'f' or refused > 0) then
        unheard_ms = left
        break
      end
      gone[#gone + 1] = claim
      if is_heard then break end
    elseif moved > 0 and moved + units > UNITS then
      again = AGAIN
      break
    else
      local process = string.sub(owner, 1, 16)
      local group = groups[process]
      if not group then
        group = { left = left, claims = {}, texts = {} }
        groups[process], groups[#groups + 1] = group, group
      end
      out, moved = out + units, moved + units
      group.claims[#group.claims + 1] = claim
      group.texts[#group.texts + 1] = text
      group[#group + 1] = { owner, units, at, life }
    end
    if index == BATCH then again = AGAIN end
  end

  -- The time stands for a fence: a push that is older than another holder is known by it.
  local stamp = groups[1] and 'g' .. fence_text(now())
  for _, group in ipairs(groups) do
    local message = stamp .. table.concat(group.texts, ',')
    if publish_to_process(channel, group[1][1], message) > 0 then
      is_heard = true
      for _, one in ipairs(group) do hold(shared, unpack(one)) end
      redis.call('ZREM', queue, unpack(group.claims))
    else
      unheard_ms = math.min(unheard_ms or group.left, group.left)
    end
  end
  if gone[1] then redis.call('ZREM', queue, unpack(gone)) end
  if is_empty then redis.call('DEL', deadlines) end
  if not is_heard and not gone[1] and returned == 0 then again = 0 end
  return again, unheard_ms, is_heard
end
