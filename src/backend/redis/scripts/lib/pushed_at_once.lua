-- The bytes of an entry that one script pushes to processes at most.
local PUSHED_AT_ONCE = 1048576
