-- Grants the lease of an entry: with a new fence if it is free, or again to the owner that has it.
-- Registers the process of any other owner, so that the end of the lease is pushed to it.
-- Returns
-- | the fence, or {'granted', fence, failed loads} | if granted
-- | {'newer', entry, time}                         | if the fence of the entry is above `seen`
-- | {'held', fence, ms left, 1}                    | if another owner has the lease
-- | {'failed', ms left, failures, message}         | while the name backs off
-- process: that of the owner; '' if it listens to the channel of the name
local lease, fence, entry, failure = unpack(KEYS)
local owner, lease_ms, fence_ms, seen, process = unpack(ARGV)

-- The usual case: there is neither a lease nor an entry, no load has failed, and the last fence is
-- of an earlier time.
if redis.call('EXISTS', lease, entry, failure) == 0 then
  local time = redis.call('TIME')
  local text = time[1] .. string.sub('00000' .. time[2], -6)
  local last = redis.pcall('SET', fence, text, 'PX', fence_ms, 'GET')
  if not last or type(last) == 'string' and #last <= 18 and string.sub(last, 1, 16) < text then
    redis.call('SET', lease, owner .. ':' .. text, 'PX', lease_ms)
    return tonumber(text)
  end
  if type(last) == 'string' then redis.call('SET', fence, last, 'PX', fence_ms) end
end

