-- The fence of a name, which each grant and each burnt load makes greater.

-- Returns the last fence under a key, or 0, and whether its grant was committed.
local function fence_at(key)
  local fence, mark = string.match(read('GET', key) or '', '^(%d+)(:?c?)$')
  return tonumber(fence) or 0, mark == ':c'
end

-- Returns a fence as 16 digits. tostring() would give 1.79e+15.
local function fence_text(fence)
  return string.format('%016.0f', fence)
end

-- Returns a fence greater than the last one and the stored entry's, and not below the clock,
-- which stands in for a last fence that has expired.
local function next_fence(last, stored)
  return math.max(now(), last + 1, stored + 1)
end

-- Writes the time as the fence, and reads the last one in the same call. Returns its text, or nil
-- if it is refused. If it is not known to be greater, returns nil, and writes the last one again.
local function clock_fence(key, fence_ms)
  local fence = time_text()
  local last = redis.pcall('SET', key, fence, 'PX', fence_ms, 'GET')
  if not last then return fence end
  if type(last) ~= 'string' then return nil end
  -- Texts of one length compare as numbers. The mark of a committed grant may follow.
  if last < fence and (#last == #fence or string.sub(last, #fence + 1) == ':c') then
    return fence
  end
  redis.call('SET', key, last, 'PX', fence_ms)
  return nil
end

-- Makes a fence the last one of its name and ends the lease, so that no load under way is stored.
-- Returns which processes were registered.
local function burn(lease, fence, text, fence_ms)
  local registered = end_lease(lease)
  local written = redis.pcall('SET', fence, text, 'PX', fence_ms)
  -- A full server refuses the write. Without a fence, no commit passes either.
  if type(written) == 'table' and written.err then redis.call('DEL', fence) end
  return registered
end
