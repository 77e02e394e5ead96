-- What the scripts about latches share. It is put in front of each of them, after the prelude.

-- The latch under a key: what is left, milliseconds until it ends, the id that set it, and its time to live;
-- nil if there is none; or, as the fifth, an error, if it is not a latch of ours.
local function latch_at(key)
  if redis.call('EXISTS', key) == 0 then return nil end
  local fields = redis.pcall('HMGET', key, 'left', 'set', 'ttl')
  local left, ttl = tonumber(fields[1]), tonumber(fields[3])
  local ends = redis.call('PTTL', key)
  if not left or not fields[2] or not ttl or ends < 0 then
    return nil, nil, nil, nil, redis.error_reply('FOREIGN ' .. key .. ' holds something that is not a latch')
  end
  return left, ends, fields[2], ttl
end
