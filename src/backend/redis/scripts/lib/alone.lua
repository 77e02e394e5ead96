-- What a script that was given several names says of one that needs a script of its own.
local ALONE = 16
