-- A ticket is the time in which a queue entry was taken, in microseconds but to the millisecond, or the
-- next number behind the last ticket. Its last two bits say how the claim waits:
-- TURN_ONLY: it is notified of its turn, and never handed the lease;
-- UNORDERED: it is not held to the order, and is skipped if it does not hear of its turn.
local TURN_ONLY, UNORDERED, TICKET_STEP = 1, 2, 4

-- Returns whether a ticket has the bits TURN_ONLY and UNORDERED.
local function ticket_bits(ticket)
  local bits = ticket % TICKET_STEP
  return bits % UNORDERED == TURN_ONLY, bits >= UNORDERED
end
