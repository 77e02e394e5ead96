-- Ends the lease of an entry if its owner has it, and publishes that, or why its load failed. With
-- a record of failed loads, no claim is granted for `wait_ms`. It stands for `counted_ms` after
-- that, so that the next failure is counted with it.
-- Returns 1 if it ended, plus REFUSED, or 0 if the owner does not have it.
-- failure: the record, or nil
local lease, channel, failure = unpack(KEYS)
local owner, message, wait_ms, counted_ms, failures = unpack(ARGV)

if not is_held_by(lease, owner) then return 0 end
local registered = end_lease(lease)
if failure then
  local record = table.concat({ wait_ms, counted_ms, failures, message }, ',')
  redis.pcall('SET', failure, record, 'PX', wait_ms + counted_ms)
end
publish_to_all(channel, registered, message)
return 1 + refused
