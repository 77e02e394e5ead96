-- Returned for one of several names that needs a script of its own.
local ALONE = 16
