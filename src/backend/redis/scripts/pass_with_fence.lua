-- Passes a lease on from its holder to another owner, or renews it if both are the same, and gives
-- it this fence. The last fence of the name becomes this one, unless it is greater.
--
-- Returns the fence, or nil if neither of the two has the lease.
local lease, fence = unpack(KEYS)
local from, to, lease_ms, fence_ms, given = unpack(ARGV)

-- include: lease_at, fence_at, fence_text, set_lease
local holder, _, _, foreign = lease_at(lease)
if foreign then return foreign end
if holder ~= from and holder ~= to then return nil end
local last = math.max(fence_at(fence), tonumber(given))
set_lease(lease, to, given, lease_ms)
redis.call('SET', fence, fence_text(last), 'PX', fence_ms)
return tonumber(given)
