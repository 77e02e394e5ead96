-- What most releases meet: it is held, and nobody waits, or of a mutex who waits is to be called. It stands in front
-- of release_queued, whose keys and arguments these are, for what that needs costs more than to end the lease.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.find(value, '^' .. ARGV[1] .. ':%d*[1-9]%d*$')
  and (not ARGV[4] or redis.call('EXISTS', KEYS[3]) == 0) and redis.call('PTTL', KEYS[1]) >= 0 then
  local publish = string.match(KEYS[2], '}:(%a)') == 's' and 'SPUBLISH' or 'PUBLISH'
  while not ARGV[4] do
    local first = redis.call('ZPOPMIN', KEYS[3])[1]
    if not first then break end
    local ends = redis.call('ZSCORE', KEYS[4], first)
    redis.call('ZREM', KEYS[4], first)
    local time = redis.call('TIME')
    if ends and tonumber(ends) > time[1] * 1000 + time[2] / 1000 then
      local own = ARGV[2] == '1' and ':' .. string.sub(first, 1, 16) or ''
      local heard = redis.pcall(publish, KEYS[2] .. own, 't' .. first)
      if heard ~= 0 then
        local kept = type(heard) == 'number' and redis.pcall('SET', KEYS[1], first .. ':0', 'PX', ARGV[3])
        if not kept or kept.err then redis.call('DEL', KEYS[1]) end
        return 1 + (type(heard) == 'number' and 2 or 4)
      end
    end
  end
  redis.call('DEL', KEYS[1])
  local heard = redis.pcall(publish, KEYS[2], 'w')
  return 1 + (type(heard) == 'number' and 2 or 4)
end
