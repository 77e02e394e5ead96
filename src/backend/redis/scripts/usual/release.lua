-- Ends what an owner holds, and its queue entry, and grants what is free then.
-- Returns 1 if it was held or 0 if not, plus REFUSED, plus AGAIN if the script is to be called
-- again.
-- owner, lease_ms, need, limit, label: of the claim, see `lib/read_entry.lua`. The last three may
-- be left out.
-- wakes_all: '1' if there are waiters without a queue, which are woken when it is empty
local lease, shared, fence, queue, deadlines, channel = unpack(KEYS)
local owner, lease_ms, fence_ms, wakes_all, need, limit, label = unpack(ARGV)
need, limit, label = need or 'x', limit or '0', label or ''
local units = tonumber(need)

-- How many of the shared units, the queue and the deadlines there are beside a sole hold.
local others

-- The usual case: the owner has what it releases, and no claim waits.
if units == 1 then
  local ends = tonumber(redis.call('ZSCORE', shared, owner) or 0)
  local time = redis.call('TIME')
  if ends > time[1] * 1000 + math.floor(time[2] / 1000)
    and redis.call('EXISTS', queue, deadlines) == 0 then
    return redis.call('ZREM', shared, owner)
  end
elseif not units and wakes_all == '0' then
  local value = redis.pcall('GET', lease)
  if type(value) == 'string' and string.find(value, owner, 1, true) == 1 then
    others = redis.call('EXISTS', shared, queue, deadlines)
    if others == 0 then return redis.call('DEL', lease) end
  end
end

