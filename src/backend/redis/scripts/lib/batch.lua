-- How many members of a set one script touches at most. With more, it says AGAIN, and is called
-- again.
local BATCH, AGAIN = 100, 8
