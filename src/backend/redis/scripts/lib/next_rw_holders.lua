-- include: batch, again, first_alive, hand_over, holds_at, keep, clock

-- Hands a read-write lock without a writer to the writer at the head of the queue, if there is no
-- reader, or to all readers at its head, with one message for each process. Returns the same as
-- `next_holder`.
local function next_rw_holders(to, queue, deadlines, readers, writers, at)
  local first, left, ticket = first_alive(queue, deadlines, writers, at)
  if not first then
    redis.call('DEL', deadlines)
    return 0
  end
  if first == AGAIN then return AGAIN end
  if redis.call('ZSCORE', writers, first) then
    if holds_at(readers, at) ~= 0 then return 0 end
    local told, heard = hand_over(to, first, ticket, left, left, at)
    if heard > 0 then
      redis.call('ZREM', queue, first)
      redis.call('ZREM', writers, first)
    end
    return told, heard == 0 and left or nil, heard > 0
  end

  local writer = redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES')[2]
  local heads = redis.call('ZRANGE', queue, 0, BATCH - 1, 'WITHSCORES')
  local processes, waiting = {}, 0
  for index = 1, #heads, 2 do
    local reader, entered = heads[index], heads[index + 1]
    if writer and tonumber(entered) >= tonumber(writer) then break end
    waiting = waiting + 1
    local process = string.sub(reader, 1, 16)
    local group = processes[process]
    if not group then
      local life = math.min(tonumber(to.handover_ms), kept_ms(deadlines, reader, at))
      group = { life = life, message = {}, holds = {}, waiters = {} }
      processes[process] = group
      processes[#processes + 1] = group
    end
    local has_to_ask = entered % TICKET_STEP == TURN_ONLY or to.hands_over ~= '1'
    local ends = has_to_ask and 0 or at - math.floor(entered / 1000) + group.life
    group.message[#group.message + 1] = reader .. ends
    group.waiters[#group.waiters + 1] = reader
    group.holds[#group.holds + 1] = at + group.life
    group.holds[#group.holds + 1] = reader
  end

  local told, granted, unheard_ms, handed = 0, 0, nil, false
  -- The time stands for a fence, which readers do not have: a push older than a writer is known.
  local stamp = 'g' .. fence_text(now())
  for _, group in ipairs(processes) do
    local heard = 0
    if group.life > 0 then
      local message = stamp .. table.concat(group.message, ',')
      told, heard = publish_to_process(to.channel, group.waiters[1], message)
    end
    if heard > 0 then
      handed = true
      redis.call('ZADD', readers, unpack(group.holds))
      keep(readers, group.life)
    elseif group.life > 0 then
      unheard_ms = math.min(unheard_ms or group.life, group.life)
    end
    -- A process that does not hear keeps its entries, and asks by itself.
    if heard > 0 or group.life <= 0 then
      redis.call('ZREM', queue, unpack(group.waiters))
      granted = granted + #group.waiters
    end
  end
  return waiting == BATCH and granted > 0 and AGAIN or told, unheard_ms, handed
end
