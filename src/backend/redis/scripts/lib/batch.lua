-- How many members of a set one script touches at most.
local BATCH = 100
