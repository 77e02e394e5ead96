-- include: read

-- Reads the record of failed loads under a key. Returns for how many milliseconds the name still
-- backs off, the number of failed loads in a row, and the message of the last one. The first two
-- are 0 without a record.
local function failure_at(key)
  local record = read('GET', key)
  if not record then return 0, 0 end
  local wait, kept, failures, message = string.match(record, '^(%d+),(%d+),(%d+),(.*)$')
  if not wait then return 0, 0 end
  local left = redis.call('PTTL', key) - kept
  -- More than at first: the server's clock was set back.
  if left > tonumber(wait) then left = 0 end
  return math.max(left, 0), tonumber(failures), message
end
