-- include: committed, fence_at, entry_at, publish_to_all, wake_all

-- Returns the reply to a commit that changes nothing: its fence is not the last one, or it was made
-- already. Otherwise returns nil, the part of the entry that was read, and the fence of the entry.
--
-- mine: the fence of the commit
-- part, time: of a newer entry, for the reply
local function settled_commit(lease, fence, entry, channel, processes, mine, part, time)
  local last, is_committed = fence_at(fence)
  local found, stored = entry_at(entry, part - 1)
  if last ~= mine then
    if found and stored > mine then return {'newer', found, time} end
    -- If the server lost its data, it lost the lease as well, and the waiters wait for its end.
    if not redis.pcall('GET', lease) then
      publish_to_all(channel, processes, 'w')
      wake_all(channel)
    end
    return 0
  end
  if stored == mine then return STORED end
  if is_committed then return PUSHED end
  return nil, found, stored
end
