-- Says who holds a lease.
-- KEYS 1 lease
-- Reply {'held', fence, ms left} | {'free'}

local token, fence, left, foreign = lease_at(KEYS[1])
if foreign then return foreign end
if not token then return {'free'} end
return {'held', fence, left}
