-- Returns the message that hands a lease over: the fence, the waiter, and the milliseconds from the
-- time of its ticket until the lease ends. The waiter knows when it took the ticket.
local function handover_message(fence, waiter, ends)
  return 'g' .. fence .. waiter .. math.max(ends, 0)
end
