-- A ticket is the microsecond in which a queue entry was taken, as a multiple of TICKET_STEP, or
-- the next multiple behind the last ticket of the queue. The rest tells how the claim waits.
local TICKET_STEP = 2
