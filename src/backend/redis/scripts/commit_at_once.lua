-- What most commits meet: the lease is as it was granted, and its fence the last one. It stands in front of commit,
-- whose keys and arguments these are, for what that needs costs more than to store the entry.

if ARGV[4] ~= '0' and redis.pcall('GET', KEYS[1]) == ARGV[1] .. ':' .. ARGV[2] and redis.pcall('GET', KEYS[2]) == ARGV[2]
  and redis.pcall('SET', KEYS[3], ARGV[3], 'PX', ARGV[4]).ok then
  redis.call('SET', KEYS[2], ARGV[2] .. ':c', 'KEEPTTL')
  redis.call('DEL', KEYS[1])
  local publish = string.match(KEYS[4], '}:(%a)') == 's' and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(publish, KEYS[4], #ARGV[3] <= tonumber(ARGV[5]) and 'e' .. ARGV[3] or 'w')
  return 16 + (type(heard) == 'number' and 2 or 4)
end
