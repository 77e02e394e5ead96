-- Latches.

-- part: latch_at
-- include: read

-- Reads the latch under a key. Returns the count left, the milliseconds until it ends, the id that
-- set it and its time to live; or nil if there is none. Any other key is an error, the fifth
-- result.
local function latch_at(key)
  if redis.call('EXISTS', key) == 0 then return nil end
  local fields = read('HMGET', key, 'left', 'set', 'ttl') or {}
  local left, ttl = tonumber(fields[1]), tonumber(fields[3])
  local ends = redis.call('PTTL', key)
  if not left or not fields[2] or not ttl or ends < 0 then
    local what = key .. ' holds something that is not a latch'
    return nil, nil, nil, nil, redis.error_reply('FOREIGN ' .. what)
  end
  return left, ends, fields[2], ttl
end
