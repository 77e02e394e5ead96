-- include: batch, again, first_alive, holds_at, hold, publish_to_process, handover_message
-- include: ticket, turn_only, fence_text, clock

-- How many permits a script takes back and hands over before it leaves the rest. A single claim may
-- be for more.
local PERMITS = 500
-- How many heads of queues cost the server as much as one permit: see `keep_each`.
local HEADS_A_PERMIT = 1 / 4

-- Hands permits to the claims at the head of the queue while they fit. Returns the same as
-- `next_holder`, and an error if the key does not hold permits.
--
-- A queue entry is `owner:count:limit`.
--
-- moved: how many permits the script has taken back
local function next_permits(to, queue, deadlines, permits, at, moved)
  local told, handed = 0, false
  local out, _, foreign = holds_at(permits, at)
  if foreign then return 0, nil, false, foreign end
  for _ = 1, BATCH / 4 do
    local claim, left, ticket = first_alive(queue, deadlines, nil, at)
    if not claim then
      redis.call('DEL', deadlines)
      return told, nil, handed
    end
    if claim == AGAIN then return AGAIN end
    local waiter, count, limit = string.match(claim, '^(%x+):(%d+):(%d+)$')
    count = tonumber(count)
    out = out + count
    if out > tonumber(limit) then return told, nil, handed end
    if moved > 0 and moved + count > PERMITS then return AGAIN end
    local life = math.min(tonumber(to.handover_ms), left)
    local has_to_ask = ticket % TICKET_STEP == TURN_ONLY or to.hands_over ~= '1'
    local ends = has_to_ask and 0 or at - math.floor(ticket / 1000) + life
    -- The time stands for a fence, which permits do not have.
    local message = handover_message(fence_text(now()), waiter, ends)
    local heard
    told, heard = publish_to_process(to.channel, waiter, message)
    -- A process that does not hear keeps its entry, and asks by itself.
    if heard == 0 then return told, left, handed end
    redis.call('ZREM', queue, claim)
    hold(permits, waiter, count, at, life)
    moved, handed = moved + count, true
    heads_seen = heads_seen + count * HEADS_A_PERMIT
  end
  return AGAIN
end
