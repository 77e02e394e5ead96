-- Passes a lease on from its holder to another owner, with a new fence.
--
-- Returns the fence if granted, or nil if the holder does not have the lease any more.
--
-- queue, unordered: the new owner leaves both
local lease, fence, queue, unordered = unpack(KEYS)
local from, to, lease_ms, fence_ms = unpack(ARGV)

-- include: lease_at, grant, leave
local holder, held = lease_at(lease)
-- A lease that is kept for its turn (fence 0) is not held yet.
if held == 0 then return nil end
if holder == to then return held end
if holder ~= from then return nil end
local granted = grant(lease, fence, to, lease_ms, fence_ms)
leave(queue, unordered, to)
return granted
