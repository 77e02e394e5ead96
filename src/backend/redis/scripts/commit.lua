-- Writes an entry, ends the lease and pushes the entry, if its fence is the last one of the name.
-- KEYS 1 lease, 2 fence, 3 entry, 4 channel
-- ARGV 1 token, 2 fence, 3 entry, 4 ttl ms (0: hand over, do not write), 5 limit of a pushed entry
-- Reply 16 stored or 8 handed over, plus what was told | 0 refused | {'newer', entry}
--
-- A committed fence is marked (`:c`), so that a commit that is sent twice is recognised even when the entry
-- that it wrote is gone again.

local mine = tonumber(ARGV[2])
local last, spent = fence_at(KEYS[2])
local entry, stored = entry_at(KEYS[3])

if last ~= mine then
  if entry and stored > mine then return {'newer', entry} end
  -- The data may be lost, and the lease with it. Whoever waits for this load would wait for its end.
  if not redis.pcall('GET', KEYS[1]) then push(KEYS[4], 'w') end
  return 0
end
if spent or stored == mine then
  return stored == mine and 16 or 8
end

local outcome = 8
if ARGV[4] ~= '0' then
  local written = redis.pcall('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
  -- A full server refuses the write. The value is handed over all the same, and what stood there goes,
  -- for it is older.
  if type(written) == 'table' and written.err then redis.pcall('DEL', KEYS[3]) else outcome = 16 end
end
redis.pcall('SET', KEYS[2], digits(mine) .. ':c', 'KEEPTTL')
if lease_at(KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return outcome + told(push_entry(KEYS[4], ARGV[3], ARGV[5]))
