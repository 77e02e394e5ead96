-- How many queue entries a script touches, and what it returns to be called again for more.
local BATCH, AGAIN = 100, 8 -- luacheck: ignore AGAIN

