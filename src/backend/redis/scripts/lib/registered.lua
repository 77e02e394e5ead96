-- The mark that a lease gets when the set of the processes that wait for it begins. A server that
-- evicts keys may evict the set alone, and the mark tells that there was one.
local REGISTERED = 'r'
