-- Converts what one owner holds into the hold of another owner: a sole hold into another one or
-- into shared units, or the only shared units into a sole hold.
-- Returns the fence if granted, which is 0 for shared units; nil if not; {'again'} if granted, and
-- the script is to be called again.
-- owner, lease_ms, need, limit, label: of the new owner's claim, see `lib/read_entry.lua`. The last
-- three may be left out.
-- from_units: the units that are converted; '0' for a sole hold
local lease, shared, fence, queue = unpack(KEYS)
local owner, lease_ms, fence_ms, from, from_units, need, limit, label = unpack(ARGV)
need, limit, label = need or 'x', limit or '0', label or ''
local units = tonumber(need)
local entry = table.concat({ owner, need, limit, lease_ms, label }, ':')

-- The usual case: a sole hold becomes another one, and the last fence is of an earlier time.
local value = not units and from_units == '0' and redis.pcall('GET', lease)
if type(value) == 'string' and string.find(value, from, 1, true) == 1 then
  -- The new owner may have waited.
  redis.call('ZREM', queue, entry)
  local time = redis.call('TIME')
  local text = time[1] .. string.sub('00000' .. time[2], -6)
  local last = redis.pcall('SET', fence, text, 'PX', fence_ms, 'GET')
  if not last or type(last) == 'string' and #last == 16 and last < text then
    local granted = owner .. ':' .. text
    if label ~= '' then granted = granted .. ':' .. label end
    redis.call('SET', lease, granted, 'PX', lease_ms)
    return tonumber(text)
  end
  if type(last) == 'string' then redis.call('SET', fence, last, 'PX', fence_ms) end
end

