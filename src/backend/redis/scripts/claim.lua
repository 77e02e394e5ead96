local holder, held, left, value = lease_at(lease)
local wait_ms, failures, message = failure_at(failure)
if holder == owner then
  renew_lease(lease, fence, lease_ms, fence_ms)
  return {'granted', held, failures}
end

local _, stored = entry_at(entry)
-- Before version 7, a master that became a replica shows scripts what has expired.
if stored > tonumber(seen) and redis.call('PTTL', entry) ~= 0 then
  return {'newer', redis.call('GET', entry), digits(now())}
end
if holder then
  if process ~= '' and not string.find(value, ',' .. process, 1, true)
    and is_full('APPEND', lease, ',' .. process) then
    -- No push tells of the end of the lease then.
    left = math.min(left, LOOK_MS)
  end
  return {'held', held, left, 1}
end
if wait_ms > 0 then return {'failed', wait_ms, failures, message} end
local granted = grant(lease, fence, owner, lease_ms, fence_ms, now(), stored, '')
return {'granted', tonumber(granted), failures}
