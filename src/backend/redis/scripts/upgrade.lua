-- Makes a reader the writer, if there is no other reader.
--
-- Returns the fence if granted, or nil if not.
local lease, fence, readers = unpack(KEYS)
local reader, writer, lease_ms, fence_ms = unpack(ARGV)

-- include: lease_at, clock_ms, holds_at, held_until, grant
local holder, held, _, foreign = lease_at(lease)
if foreign then return foreign end
if holder == writer then return held end
local at = now_ms()
local reading
reading, _, foreign = holds_at(readers, at)
if foreign then return foreign end
if holder or reading ~= 1 or not held_until(readers, reader, at) then return nil end
redis.call('DEL', readers)
return grant(lease, fence, writer, lease_ms, fence_ms)
