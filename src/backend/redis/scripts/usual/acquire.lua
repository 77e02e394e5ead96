-- Grants a claim that fits beside the holders if no living claim is before it in the queue, or
-- renews the hold of its owner. A claim that is not granted enters the queue. Returns
-- | the fence                   | if granted; 0 for shared units
-- | {'again'}                   | if the script is to be called again
-- | {'held', fence, ms, holders} | otherwise. The fence of the sole holder or 0, and the time until
-- |                             | the first hold ends, or the first claim counts as dead
-- owner, lease_ms, need, limit, label: of the claim, see `lib/read_entry.lua`. The last three may
-- be left out.
-- entry_ms: how long the queue entry is kept; '0' if the claim does not enter the queue
local lease, shared, fence, queue, deadlines = unpack(KEYS)
local owner, lease_ms, fence_ms, entry_ms, need, limit, label = unpack(ARGV)
need, limit, label = need or 'x', limit or '0', label or ''
local units = tonumber(need)

-- The usual case: there is no holder and no queue, and the last fence is of an earlier time.
if redis.call('EXISTS', lease, shared, queue) == 0 then
  local time = redis.call('TIME')
  if not units then
    local text = time[1] .. string.sub('00000' .. time[2], -6)
    local last = redis.pcall('SET', fence, text, 'PX', fence_ms, 'GET')
    if not last or type(last) == 'string' and #last == 16 and last < text then
      local value = owner .. ':' .. text
      if label ~= '' then value = value .. ':' .. label end
      redis.call('SET', lease, value, 'PX', lease_ms)
      return tonumber(text)
    end
    if type(last) == 'string' then redis.call('SET', fence, last, 'PX', fence_ms) end
  elseif units == 1 and limit ~= '0' then
    local at = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZADD', shared, at + lease_ms, owner)
    redis.call('PEXPIRE', shared, lease_ms)
    return 0
  end
end

