-- What most releases meet: it is held, and nobody waits in the queue. It stands in front of release_queued, whose
-- keys and arguments these are, and of all that it needs, for to make that ready costs more than to end the lease.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.find(value, '^' .. ARGV[1] .. ':%d*[1-9]%d*$')
  and redis.call('EXISTS', KEYS[3]) == 0 and redis.call('PTTL', KEYS[1]) >= 0 then
  redis.call('DEL', KEYS[1])
  local heard = redis.pcall(string.match(KEYS[2], '}:(%a)') == 's' and 'SPUBLISH' or 'PUBLISH', KEYS[2], 'w')
  return 1 + (type(heard) == 'table' and heard.err and 4 or 2)
end
