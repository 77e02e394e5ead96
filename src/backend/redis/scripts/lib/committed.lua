-- Returned by a commit if the entry is stored, or if it was only pushed to the waiters.
local STORED, PUSHED = 16, 8
