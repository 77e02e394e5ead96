-- Reads who holds a semaphore or loads an entry, how many wait, and how loads have failed.
-- Returns {the owner of the one holder or '', its fence or 0, ms left, holders, waiters, the time,
-- the label of its process or '', ms for which the entry backs off, failures, message or ''}.
-- is_entry: '1' if those that wait are registered in the lease, and not in the queue
local lease, shared, queue, failure = unpack(KEYS)

local at = now()
local owner, fence, left, value = lease_at(lease)
local waiters = ARGV[1] == '1' and select(2, string.gsub(value or '', ',', ''))
  or read('ZCOUNT', queue, '-inf', '+inf') or 0
local holders, label = 1, owner and string.match(value, '^%x+:%d+:(.*)$') or ''
if not owner then
  local at_ms = math.floor(at / 1000)
  owner, fence, holders = '', 0, count_holds(shared, at_ms)
  left = math.max((redis.call('ZRANGE', shared, -1, -1, 'WITHSCORES')[2] or 0) - at_ms, 0)
end
local wait_ms, failures, message = failure_at(failure)
return { owner, fence, left, holders, waiters, at, label, wait_ms, failures, message or '' }
