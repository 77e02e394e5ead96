-- include: batch, again, first_alive, hand_over

-- Hands a free mutex to the older head of its two queues. An unordered claim that does not hear of
-- it loses its entry, and the next one has its turn. Returns the bit of `publish`, or AGAIN; the
-- milliseconds until the entry of an ordered claim ends that does not hear of it, or nil; and
-- whether a claim hears of it.
local function next_holder(to, queue, unordered, deadlines, at)
  for _ = 1, BATCH / 4 do
    local waiter, left, ticket = first_alive(queue, deadlines, nil, at)
    local other, other_left, other_ticket = first_alive(unordered, deadlines, nil, at)
    if waiter == AGAIN or other == AGAIN then return AGAIN end
    if not waiter and not other then
      redis.call('DEL', deadlines)
      return 0
    end
    local from, turn_ms = queue, left
    if other and (not waiter or other_ticket < ticket) then
      waiter, left, ticket, from, turn_ms = other, other_left, other_ticket, unordered, to.turn_ms
    end
    local told, heard = hand_over(to, waiter, ticket, left, turn_ms, at)
    if heard > 0 then redis.call('ZREM', from, waiter) end
    if from == queue then return told, heard == 0 and left or nil, heard > 0 end
    if heard > 0 or told == REFUSED then return told, nil, heard > 0 end
    redis.call('ZREM', from, waiter)
  end
  return AGAIN
end
