-- Counts a latch down, once for each id, and tells who waits when nothing is left.
-- KEYS 1 latch, 2 channel
-- ARGV 1 id of this step, 2 by how many
-- Reply {'left', count, ms until it ends, 1 if PUBLISH is forbidden (if anyone was to be told)} | {'unset'}

local left, ends, set, ttl, foreign = latch_at(KEYS[1])
if foreign then return foreign end
if not left then return {'unset'} end
local muted
if left > 0 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  left = math.max(0, left - tonumber(ARGV[2]))
  -- A full server refuses nothing of it: in a script that has written, every write is let through, and the
  -- first here is one that needs no memory.
  redis.call('HDEL', KEYS[1], ARGV[1])
  if left > 0 then
    redis.call('HSET', KEYS[1], 'left', left, ARGV[1], '')
  else
    -- What stays for those who look late needs no ids: a step that is sent again finds zero.
    ends = ttl
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'left', 0, 'set', set, 'ttl', ttl)
    redis.call('PEXPIRE', KEYS[1], ttl)
    muted = push(KEYS[2], 'w')
  end
end
return {'left', left, ends, muted}
