-- The usual handover, at a single server: a sole hold goes to the first claim in the queue. This
-- claim is for a sole hold, and its process is alive and hears of the grant. There are no shared
-- units, and the last fence is of an earlier time. In any other case, at most the fence has grown.
if others == 2 then
  local first, ticket = unpack(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES'))
  local granted_ms, first_label = string.match(first or '', '^%x+:[xf]:0:(%d+):(.*)$')
  local scope, name, database = string.match(channel, '^([^{]*)({[^}]*}:)c(.*)$')
  local first_owner, process = string.sub(first or '', 1, 32), string.sub(first or '', 1, 16)
  if granted_ms and scope and first_owner ~= owner then
    local time = redis.call('TIME')
    local at = time[1] * 1000 + math.floor(time[2] / 1000)
    -- As in `lib/time_left.lua`.
    local score = tonumber(redis.pcall('ZSCORE', deadlines, process)) or 0
    local left, given_ms = math.floor(score) - at, score % 1 * 204800
    local is_alive = left > 0 and (given_ms == 0 or left <= given_ms + 500)

    local text = time[1] .. string.sub('00000' .. time[2], -6)
    local last = is_alive and redis.pcall('SET', fence, text, 'PX', fence_ms, 'GET')
    local is_new = not last or type(last) == 'string' and #last == 16 and last < text
    if is_alive and is_new then
      local life = math.min(2000, granted_ms)
      local ends = math.max(at - math.floor(ticket / 1000) + life, 0)
      local message = 'g' .. text .. first_owner .. ends .. ',' .. string.sub(lease, -1)
      local to = scope .. 'p' .. database .. ':' .. process
      local heard = redis.pcall('PUBLISH', to, scope .. name .. message)
      if type(heard) == 'number' and heard > 0 then
        local value = first_owner .. ':' .. text
        if first_label ~= '' then value = value .. ':' .. first_label end
        redis.call('SET', lease, value, 'PX', life)
        local own = table.concat({ owner, need, limit, lease_ms, label }, ':')
        redis.call('ZREM', queue, first, own)
        return 1
      end
    elseif type(last) == 'string' then
      redis.call('SET', fence, last, 'PX', fence_ms)
    end
  end
end

