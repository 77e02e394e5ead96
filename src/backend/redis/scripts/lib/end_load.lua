-- include: commit_mark, end_lease, fence_text, lease_at, wake_all

-- Marks a fence as committed, and ends its lease and the record of failed loads. A lease that is
-- lost took registrations with it. Returns what `end_lease` returns.
local function end_load(lease, fence, channel, failure, owner, mine)
  mark_committed(fence, fence_text(mine))
  redis.call('DEL', failure)
  if lease_at(lease) == owner then return end_lease(lease) end
  wake_all(channel)
  return ''
end
