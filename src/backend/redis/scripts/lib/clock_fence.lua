-- Takes a fence from the clock: writes it, and reads the last fence in the same call. Returns its
-- text. Returns nil, and leaves the last fence as it is, unless the new fence is known to be
-- greater. `time` is the reply of TIME.
local function clock_fence(key, fence_ms, time)
  local fence = time[1] .. string.sub('00000' .. time[2], -6)
  local last = redis.pcall('SET', key, fence, 'PX', fence_ms, 'GET')
  if not last then return fence end
  if type(last) ~= 'string' then return nil end
  -- Texts of one length compare as numbers. The last fence may have the mark of a committed grant.
  if last < fence and (#last == #fence or string.sub(last, #fence + 1) == ':c') then
    return fence
  end
  redis.call('SET', key, last, 'PX', fence_ms)
  return nil
end
