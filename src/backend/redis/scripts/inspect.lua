-- Reads who holds a semaphore or loads an entry, and how many wait.
--
-- Returns {the owner of the one holder or '', its fence or 0, ms left, holders, waiters, the time}.
--
-- waiting: the queue; or for an entry, a set of processes that wait for its load
-- is_entry: '1' if processes are also registered in the lease
local lease, shared, waiting = unpack(KEYS)
local is_entry = ARGV[1] == '1'

-- include: clock, lease_at, holds_at
local at = now()
local owner, fence, left, foreign, value = lease_at(lease)
if foreign then return foreign end
local waiters = 0
if is_entry then
  waiters = select(2, string.gsub(value or '', ',', '')) + #(read('SMEMBERS', waiting) or {})
else
  waiters = read('ZCOUNT', waiting, '-inf', '+inf') or 0
end
if owner then return { owner, fence, left, 1, waiters, at } end
local holders, shared_left, not_holds = holds_at(shared, math.floor(at / 1000))
if not_holds then return not_holds end
return { '', 0, shared_left, holders, waiters, at }
