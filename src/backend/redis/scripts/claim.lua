-- Grants the lease of an entry: with a new fence if it is free, or again to the owner that has it.
-- Registers the process of any other owner, so that the end of the lease is pushed to it.
-- Returns the fence or {'granted', fence, failed loads} if granted; {'newer', entry, time} if an
-- entry stands whose fence is greater than `seen`; {'held', fence, ms left, 1}; or
-- {'failed', ms left, failures, message} while the name backs off.
-- process: that of the owner; '' if it listens to the channel of the name
local lease, fence, entry, failure = unpack(KEYS)
local owner, lease_ms, fence_ms, seen, process = unpack(ARGV)

-- The usual case: there is neither a lease nor an entry, and no load has failed.
if redis.call('EXISTS', lease, entry, failure) == 0 then
  return grant(lease, fence, owner, lease_ms, fence_ms, 0)
end

local holder, held, left, value = lease_at(lease)
local wait_ms, failures, message = failure_at(failure)
if holder == owner then
  renew_lease(lease, fence, lease_ms, fence_ms)
  return {'granted', held, failures}
end

local _, stored = entry_at(entry)
-- Before version 7, a master that became a replica shows scripts what has expired.
if stored > tonumber(seen) and redis.call('PTTL', entry) ~= 0 then
  return {'newer', redis.call('GET', entry), time_text()}
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
return {'granted', grant(lease, fence, owner, lease_ms, fence_ms, stored), failures}
