-- What most claims meet: nobody holds it and nobody waits, or it is kept for who asks; of an entry, nothing stands
-- there. It stands in front of acquire and acquire_queued, whose keys and arguments these are, for what those need
-- costs more than to grant the lease.

if redis.call('EXISTS', KEYS[1], unpack(KEYS, 3)) == 0 or redis.pcall('GET', KEYS[1]) == ARGV[1] .. ':0' then
  local time, last = redis.call('TIME'), redis.pcall('GET', KEYS[2])
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  if not last or type(last) == 'string' and #string.gsub(last, ':c$', '') == #now and last < now then
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. now, 'PX', ARGV[2])
    redis.call('SET', KEYS[2], now, 'PX', ARGV[3])
    return tonumber(now)
  end
end
