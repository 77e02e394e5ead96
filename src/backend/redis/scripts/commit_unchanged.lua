-- Renews an entry without writing its payload, ends its lease and publishes the entry, if the fence
-- is the last one of the name.
--
-- Returns the same as `commit`, or nil if the entry is not the one that the load began with. Then
-- nothing changes, and the lease goes on.
--
-- failure: the record of failed loads, which ends
-- seen: the fence of the entry that the load began with
-- tiers: the channel of local tiers that may have the entry, or ''
-- terms: the costs and the windows, as in the header
local lease, fence, entry, channel, failure = unpack(KEYS)
local owner, granted, seen, terms, ttl_ms, push_limit, part, tiers = unpack(ARGV)

-- include: committed, publish_entry, time_text, settled_commit, end_load
-- include: tell_tiers
local mine, stored_at = tonumber(granted), time_text()
local settled, found, stored =
  settled_commit(lease, fence, entry, channel, owner, mine, part, stored_at)
if settled then return settled end
-- An entry of format 1 has no room for the windows.
if stored ~= tonumber(seen) or string.sub(found, 3, 3) ~= '2' then return nil end

tell_tiers(tiers, lease, fence_text(mine))
-- A full server lets all writes through behind one that needs no memory.
redis.call('PEXPIRE', entry, ttl_ms)
redis.call('SETRANGE', entry, 4, fence_text(mine) .. stored_at)
local size = redis.call('SETRANGE', entry, 44, terms)
local registered = end_load(lease, fence, failure, owner, mine)
local bytes = size <= tonumber(push_limit) and redis.call('GET', entry)
local entry_stored = { granted, size, entry }
return STORED + publish_entry(channel, registered, bytes, push_limit, entry_stored)
