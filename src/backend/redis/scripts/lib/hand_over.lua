-- include: publish_to_process, handover_message, ticket, turn_only, set_lease, grant

-- Hands a free lease to a waiter whose process keeps its entry for another `left` ms. Grants it, or
-- keeps it for the waiter with the fence 0 and notifies the waiter of its turn. Does nothing if no
-- client hears of it. Returns what `publish` returns.
--
-- to: lease, fence, channel; hands_over, handover_ms, fence_ms as in the scripts
-- turn_ms: how long the lease is kept for a waiter that is notified
local function hand_over(to, waiter, ticket, left, turn_ms, at)
  if ticket % TICKET_STEP == TURN_ONLY or to.hands_over ~= '1' then
    local told, heard = publish_to_process(to.channel, waiter, 't' .. waiter)
    if heard > 0 then set_lease(to.lease, waiter, '0', turn_ms) end
    return told, heard
  end
  local life = math.min(tonumber(to.handover_ms), left)
  local granted = fence_text(grant(to.lease, to.fence, waiter, life, to.fence_ms))
  local ends = at - math.floor(ticket / 1000) + life
  local message = handover_message(granted, waiter, ends)
  local told, heard = publish_to_process(to.channel, waiter, message)
  if heard == 0 then redis.call('DEL', to.lease) end
  return told, heard
end
