local mine, last, is_committed = tonumber(granted), fence_at(fence)
local _, stored = entry_at(entry)
local is_owner = is_held_by(lease, owner)
if staged and (last ~= mine or stored == mine or is_committed) then redis.call('DEL', staged) end
if last ~= mine then
  if stored > mine then return {'newer', redis.call('GET', entry), stored_at} end
  -- The lease stands if the server evicted the fence alone. It is lost with its registrations if
  -- the server lost its data. Any other lease is that of a later load.
  if is_owner then
    publish_to_all(channel, end_lease(lease), 'w')
  elseif redis.call('EXISTS', lease) == 0 then
    publish(channel, 'w')
  end
  return 0
end
if stored == mine then return STORED end
if is_committed then return PUSHED end

if ttl_ms ~= '0' then
  tell_tiers(tiers, lease, granted)
  is_stored = staged and move_entry(staged, entry, ttl_ms, 20, stored_at)
    or not staged and redis.pcall('SET', entry, bytes, 'PX', ttl_ms).ok
  -- A full server refuses the write. The entry that stands is older.
  if not is_stored then redis.pcall('DEL', entry) end
end
-- A commit that is sent twice is recognised, even if the entry that it wrote is gone.
redis.pcall('SET', fence, granted .. ':c', 'KEEPTTL')
redis.call('DEL', failure)
local registered = is_owner and end_lease(lease) or ''
-- No change is told of an entry that is not stored, so it has no windows.
if not is_stored then bytes = string.sub(bytes, 1, 52) .. ('0'):rep(30) .. string.sub(bytes, 83) end
publish_entry(channel, registered, not staged and bytes, is_stored and granted, size)
return (is_stored and STORED or PUSHED) + refused
