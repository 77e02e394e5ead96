-- include: ticket

-- Returns whether a ticket has the bits TURN_ONLY and UNORDERED.
local function ticket_bits(ticket)
  local bits = ticket % TICKET_STEP
  return bits % UNORDERED == TURN_ONLY, bits >= UNORDERED
end
