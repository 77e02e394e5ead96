-- Tells the waiters for some locks if a process that holds them or waits for them may not publish.
-- Tries that on a channel without listeners.
--
-- Returns {'published'} or {'refused'}. No other script replies so: where answers are mixed up, it
-- is not taken for a grant.
--
-- KEYS: for each lock the key that tells it, and the deadlines of the processes in its queue
--
-- channel: without listeners; then for each lock for how many milliseconds it is told
local channel = ARGV[1]

-- include: publish, keep, look_again
if publish(channel, '') == PUBLISHED then return { 'published' } end
for one = 1, #KEYS / 2 do
  local muted, deadlines = unpack(KEYS, 2 * one - 1, 2 * one)
  local life_ms = ARGV[1 + one]
  -- A full server may refuse it. The waiters find the release by themselves then.
  if not redis.pcall('SET', muted, '', 'PX', life_ms, 'NX') then keep(muted, life_ms) end
  look_again(deadlines)
end
return { 'refused' }
