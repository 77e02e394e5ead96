-- A ticket is the millisecond in which a queue entry was taken, as microseconds, or the next
-- multiple of TICKET_STEP behind the last ticket. Its last two bits tell how the claim waits. A
-- claim with TURN_ONLY is notified of its turn, and never handed the lease. A claim with UNORDERED
-- is not held to the order, and is skipped if it does not hear of its turn.
local TURN_ONLY, UNORDERED, TICKET_STEP = 1, 2, 4
