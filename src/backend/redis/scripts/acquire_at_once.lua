-- What most claims meet: nobody holds it and nobody waits, or it is kept for who asks; of an entry, nothing stands
-- there. It stands in front of acquire and acquire_queued, whose keys and arguments these are, for what those need
-- costs more than to grant the lease.

if redis.call('EXISTS', KEYS[1], unpack(KEYS, 3)) == 0 or redis.pcall('GET', KEYS[1]) == ARGV[1] .. ':0' then
  local time = redis.call('TIME')
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  -- (The last fence with the new one in one call.)
  local last = redis.pcall('SET', KEYS[2], now, 'PX', ARGV[3], 'GET')
  if not last or type(last) == 'string' and #string.gsub(last, ':c$', '') == #now and last < now then
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. now, 'PX', ARGV[2])
    return tonumber(now)
  end
  if type(last) == 'string' then redis.call('SET', KEYS[2], last, 'PX', ARGV[3]) end
end
