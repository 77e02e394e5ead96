-- Reads who holds a semaphore or loads an entry, and how many wait.
--
-- Returns {the owner of the one holder or '', its fence or 0, ms left, holders, waiters, the time,
-- the label of its process or ''}.
--
-- is_entry: '1' if those that wait are registered in the lease, and not in the queue
local lease, shared, queue = unpack(KEYS)
local is_entry = ARGV[1] == '1'

-- include: clock, lease_at, holds_at
local at = now()
local owner, fence, left, foreign, value = lease_at(lease)
if foreign then return foreign end
local waiters = is_entry and select(2, string.gsub(value or '', ',', ''))
  or read('ZCOUNT', queue, '-inf', '+inf') or 0
if owner then
  local label = not is_entry and string.match(value, '^%x+:%d+:(.*)$') or ''
  return { owner, fence, left, 1, waiters, at, label }
end
local holders, shared_left, not_holds = holds_at(shared, math.floor(at / 1000))
if not_holds then return not_holds end
return { '', 0, shared_left, holders, waiters, at, '' }
