-- Says what is left of a latch.
-- KEYS 1 latch
-- Reply {'left', count, ms until it ends} | {'unset'}

local left, ends, _, _, foreign = latch_at(KEYS[1])
if foreign then return foreign end
if not left then return {'unset'} end
return {'left', left, ends}
