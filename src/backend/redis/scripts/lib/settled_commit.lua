-- include: committed, end_lease, fence_at, entry_at, lease_at, publish_to_all, wake_all

-- Returns the reply to a commit that changes nothing: its fence is not the last one, or it was made
-- already. Otherwise returns nil, the part of the entry that was read, and the fence of the entry.
--
-- owner, mine: those of the commit, the second is its fence
-- part, time: of a newer entry, for the reply
local function settled_commit(lease, fence, entry, channel, processes, owner, mine, part, time)
  local last, is_committed = fence_at(fence)
  local found, stored = entry_at(entry, part - 1)
  if last ~= mine then
    local holder, _, _, foreign = lease_at(lease)
    if found and stored > mine then
      -- Processes may have registered in a lease that was evicted before the newer entry came.
      if not holder and not foreign then wake_all(channel) end
      return {'newer', found, time}
    end
    -- The lease stands if the server evicted the fence alone. It is lost with its registrations if
    -- the server lost its data. Any other lease is that of a later load.
    if holder == owner then
      publish_to_all(channel, end_lease(lease), processes, 'w')
    elseif not holder and not foreign then
      publish(channel, 'w')
      wake_all(channel)
    end
    return 0
  end
  if stored == mine then return STORED end
  if is_committed then return PUSHED end
  return nil, found, stored
end
