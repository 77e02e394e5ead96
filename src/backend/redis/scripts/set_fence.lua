-- Makes a lease last its full time from now, and gives it this fence. The last fence of the name
-- becomes this one, unless it is greater.
-- Returns 1, or 0 if the owner does not have the lease.
local lease, fence = unpack(KEYS)
local owner, lease_ms, fence_ms, given = unpack(ARGV)

if not is_held_by(lease, owner) then return 0 end
keep(fence, fence_ms)
redis.call('SET', lease, owner .. ':' .. given, 'PX', lease_ms)
local last = fence_at(fence)
redis.call('SET', fence, digits(math.max(last, tonumber(given))), 'PX', fence_ms)
return 1
