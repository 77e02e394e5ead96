-- What most releases meet: it is held, and nobody waits, or of a mutex or a fair one who waits hears of it. It stands in
-- front of release_queued, whose keys and arguments these are, for what that needs costs more than to end the lease.

local value = redis.pcall('GET', KEYS[1])
local held = type(value) == 'string' and string.match(value, '^' .. ARGV[1] .. ':(%d*[1-9]%d*)$')
if held and (not KEYS[6] and ARGV[4] ~= '0' or redis.call('EXISTS', KEYS[3]) == 0) then
  local publish = string.match(KEYS[2], '}:(%a)') == 's' and 'SPUBLISH' or 'PUBLISH'
  local first = redis.call('ZPOPMIN', KEYS[3])
  while first[1] do
    local token, time = first[1], redis.call('TIME')
    local at, ticket = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(first[2])
    local waited, how, life = at - math.floor(ticket / 1000), ticket % 4, tonumber(ARGV[4])
    if how < 2 or waited > tonumber(ARGV[6]) then life = math.min(life, (redis.call('ZSCORE', KEYS[4], token) or 0) - at) end
    -- (A place of its own it may have, if it was passed the lease while it waited.)
    if token == ARGV[1] then life = 0 end
    local known, heard = how ~= 1, 0
    if life > 0 and known then
      local message, value = 't' .. token, token .. ':0'
      if how ~= 3 then
        local fence = time[1] .. string.sub('00000' .. time[2], -6)
        -- (The last fence with the new one in one call.)
        local last = redis.pcall('SET', KEYS[5], fence, 'PX', ARGV[5], 'GET')
        known = not last or type(last) == 'string' and #last == #fence and last < fence
        if not known and type(last) == 'string' then redis.call('SET', KEYS[5], last, 'PX', ARGV[5]) end
        message, value = 'g' .. fence .. token .. math.max(waited + life, 0), token .. ':' .. fence
      end
      if known then
        heard = redis.pcall(publish, KEYS[2] .. (ARGV[2] == '1' and ':' .. string.sub(token, 1, 16) or ''), message)
      end
      if type(heard) == 'number' and heard > 0 then
        redis.call('SET', KEYS[1], value, 'PX', how ~= 3 and life or ARGV[3])
        redis.call('ZREM', KEYS[4], token)
        return 3
      end
    end
    -- Who is held to the order keeps the place, and so does everyone where nobody may be told.
    if life > 0 and (how < 2 or not known or heard ~= 0) then
      redis.call('ZADD', KEYS[3], first[2], token)
      redis.call('PEXPIRE', KEYS[3], math.max(redis.call('PTTL', KEYS[4]), 1))
      break
    end
    redis.call('ZREM', KEYS[4], token)
    first = redis.call('ZPOPMIN', KEYS[3])
  end
  if not first[1] then
    redis.call('DEL', KEYS[1])
    local heard = redis.pcall(publish, KEYS[2], 'w')
    return 1 + (type(heard) == 'number' and 2 or 4)
  end
end
