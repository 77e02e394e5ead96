-- A ticket is the microsecond in which a queue entry was taken, as a multiple of TICKET_STEP, or
-- the next multiple behind the last ticket of the queue. A claim with TURN_ONLY is notified of its
-- turn, and never handed the lease.
local TURN_ONLY, TICKET_STEP = 1, 2
