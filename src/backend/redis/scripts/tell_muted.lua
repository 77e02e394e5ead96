-- Tells the waiters for a lock if the process that claims it may not publish. Tries that on a
-- channel without listeners.
--
-- Returns {'published'} or {'refused'}. No other script replies so: where answers are mixed up, it
-- is not taken for a grant.
--
-- muted: the key that tells it, for `life_ms`
local muted = KEYS[1]
local channel, life_ms = unpack(ARGV)

-- include: publish
if publish(channel, '') == PUBLISHED then return { 'published' } end
-- A full server may refuse it. The waiters find the release by themselves then.
redis.pcall('SET', muted, '', 'PX', life_ms)
return { 'refused' }
