-- A queue entry has the owner of a claim, its need, its limit, the milliseconds of its lease, and
-- the label of its process. The need is a number of shared units, of which at most `limit` may be
-- out; or a sole hold: `x`, which is dropped if its process does not hear of its grant, or `f`,
-- which then stays first until the deadline of its process.
-- Returns the owner, the need, the units or nil, the limit, the milliseconds, and the label.
local function read_entry(entry)
  local owner, need, limit, lease_ms, label =
    string.match(entry, '^(%x+):(%w+):(%d+):(%d+):(.*)$')
  return owner, need, tonumber(need), limit, lease_ms, label
end

