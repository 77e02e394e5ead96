-- Returned by a script that has more to do than it may at once. It is called again.
local AGAIN = 8
