-- Reads what is left of a latch.
--
-- Returns {'left', count, ms until it ends}, or {'unset'} if there is no latch.
local latch = KEYS[1]

-- include: latch_at
local left, ends, _, _, foreign = latch_at(latch)
if foreign then return foreign end
if not left then return {'unset'} end
return {'left', left, ends}
