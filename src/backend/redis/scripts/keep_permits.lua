-- Keeps the queue entries of the process of some claims for permits. Hands permits over that fit.
--
-- KEYS: for each set of permits its permits, channel, queue and deadlines
--
-- Returns the same as `keep_queued`. The lease that ends is the first hold.
--
-- hands_over, handover_ms: as for `release_permit`; the rest as for `keep_queued`
-- claims: `owner:count:limit` of each
local hands_over, handover_ms, entry_ms = unpack(ARGV)

-- include: clock_ms, keep_entries, hold_ms, head_waits, next_permits, keep_each
local at = now_ms()
local from = '(' .. at

-- Returns whether the head of a queue is to wait, since too many permits are out.
local function has_to_wait(head, ours, deadlines, permits)
  if not head then return false end
  local count, limit = string.match(head, ':(%d+):(%d+)$')
  local out = redis.call('ZCOUNT', permits, from, '+inf')
  return out + tonumber(count) > tonumber(limit) and head_waits(head, ours, deadlines, at)
end

return keep_each(4, 4, at, function(keys, _, claims, looks)
  local permits, channel, queue, deadlines = unpack(keys)
  local head = redis.call('ZRANGE', queue, '0', '0')[1]
  local has_lapsed, stands =
    keep_entries({ queue }, deadlines, {}, claims, at, entry_ms, head)
  local left = hold_ms(permits, '0', at)
  local told, unheard_ms, handed, foreign = 0
  if looks or left <= 0 or not has_to_wait(head, claims[1], deadlines, permits) then
    local to = { channel = channel, hands_over = hands_over, handover_ms = handover_ms }
    told, unheard_ms, handed, foreign = next_permits(to, queue, deadlines, permits, at, 0)
    if foreign then return foreign end
    local ends =
      redis.call('ZRANGE', permits, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    left = unheard_ms or ends and ends - at or 0
  end
  return { told, left, has_lapsed, handed and 1 or 0, unpack(stands) }
end)
