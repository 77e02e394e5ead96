-- How long a lease that is handed over lasts, unless it is renewed.
local HANDOVER_MS = 2000
-- How many units one script takes back and hands over. A single claim may be for more.
local UNITS = 500

-- Grants what is free to the claims at the head of the queue, in their order and while they fit.
-- There must be no sole holder. Publishes to the process of each granted claim the fence, and the
-- milliseconds from its ticket to the end of its lease. Then the entry of the claim is
-- | removed | if a process receives the push, or the entry may be lost (see `read_entry`)
-- | kept    | otherwise, and the claim is not granted
-- The entries of dead processes are removed as well.
-- Returns three values:
-- | AGAIN or 0      | whether the script is to be called again
-- | ms or nil       | after how long the entry ends that was kept
-- | true or false   | whether a process has received a push
-- KEYS: the lease, the shared units, the fence, the queue, the deadlines, and the channel
-- at_us: the server's time
-- returned: the units that the script has taken back
local function grant_next(at_us, fence_ms, returned)
  local lease, shared, fence, queue, deadlines, channel = unpack(KEYS)
  local at = math.floor(at_us / 1000)
  local out = count_holds(shared, at)
  local gone, moved, again = {}, returned, 0
  local is_heard, unheard_ms = false, nil
  for index = 1, BATCH do
    local claim, ticket = claim_at(queue, index)
    if not claim then
      if not is_heard and #gone == index - 1 then redis.call('DEL', deadlines) end
      break
    end
    local owner, need, units, limit, lease_ms, label = read_entry(claim)
    local left, life = deadline_in(deadlines, claim, at), math.min(HANDOVER_MS, lease_ms)
    if left <= 0 then
      gone[#gone + 1] = claim
    elseif not fits(out, units, limit) then
      break
    elseif units and moved > 0 and moved + units > UNITS then
      again = AGAIN
      break
    else
      -- Units have no fence. The time in its place shows the waiter a push that is too old.
      local given = units and digits(at_us)
        or grant(lease, fence, owner, life, fence_ms, at_us, 0, label)
      local ends = math.max(at - math.floor(ticket / 1000) + life, 0)
      -- The last letter of the key of the lease tells a mutex from a writer.
      local hold_letter = units and 's' or string.sub(lease, -1)
      local message = 'g' .. given .. owner .. ends .. ',' .. hold_letter
      local hears = publish_to_process(channel, owner, message) > 0
      if units then
        out, moved = out + units, moved + units
        if hears then hold(shared, owner, units, at, life) end
      elseif not hears then
        redis.call('DEL', lease)
      end
      is_heard = is_heard or hears
      -- If an ACL refuses the push, the process may still live.
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
  -- Without progress, another call would find the same.
  if not is_heard and not gone[1] and returned == 0 then again = 0 end
  return again, unheard_ms, is_heard
end

