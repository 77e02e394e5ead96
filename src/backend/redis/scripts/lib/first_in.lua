-- include: leave, ticket_bits

-- Returns the first claim in a queue whose entry is still kept, the milliseconds until its
-- deadline, and its ticket; or nil. Removes the entries before it that are past their deadlines. If
-- `ordered`, skips the claims that are not held to the order. To find the first writer, pass the
-- set of the writers as `queue` and the whole queue as `writers`.
local function first_in(queue, deadlines, writers, at, ordered)
  local index = 0
  while true do
    local first = redis.call('ZRANGE', queue, index, index, 'WITHSCORES')
    if not first[1] then return nil end
    local ticket = tonumber(first[2])
    local _, unordered = ticket_bits(ticket)
    local deadline = redis.call('ZSCORE', deadlines, first[1])
    if not deadline or tonumber(deadline) <= at then
      leave(queue, deadlines, writers, first[1])
    elseif ordered and unordered then
      index = index + 1
    else
      return first[1], tonumber(deadline) - at, ticket
    end
  end
end
