-- The bit in the ticket of a claim that is notified of its turn, and never handed the lease.
local TURN_ONLY = 1
