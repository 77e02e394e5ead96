-- Returns for how many milliseconds a name backs off, its failed loads in a row, and the message of
-- the last one; or 0 and 0.
local function failure_at(key)
  local wait, kept, failures, message =
    string.match(read('GET', key) or '', '^(%d+),(%d+),(%d+),(.*)$')
  if not wait then return 0, 0 end
  local left = redis.call('PTTL', key) - kept
  -- More than at first: the server's clock was set back.
  if left > tonumber(wait) then left = 0 end
  return math.max(left, 0), tonumber(failures), message
end

