-- The fence of a name, which each grant and each burnt load makes greater.

-- part: fence_at
-- include: read

-- Returns the last fence under a key, or 0 if there is none, and whether its grant was committed.
local function fence_at(key)
  local value = read('GET', key)
  if not value then return 0, false end
  local fence, mark = string.match(value, '^(%d+)(:?c?)$')
  return tonumber(fence) or 0, mark == ':c'
end

-- part: fence_text
-- Returns a fence as text: 16 digits, where tostring() would give 1.79e+15.
local function fence_text(fence)
  return string.format('%016.0f', fence)
end

-- part: next_fence
-- include: clock

-- Returns a fence that is greater than the last fence, the fence of the stored entry, and each
-- fence that was taken from the clock.
local function next_fence(last, stored)
  return math.max(now(), last + 1, stored + 1)
end

-- part: clock_fence
-- include: time

-- Takes a fence from the clock: writes it, and reads the last fence in the same call. Returns its
-- text. Returns nil, and leaves the last fence as it is, unless the new fence is known to be
-- greater.
local function clock_fence(key, fence_ms)
  local fence = time_text()
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

-- part: burn
-- include: end_lease

-- Makes a fence the last one of its name and ends the lease, so that no load under way is stored.
-- Returns what `end_lease` returns.
local function burn(lease, fence, text, fence_ms)
  local registered = end_lease(lease)
  local written = redis.pcall('SET', fence, text, 'PX', fence_ms)
  -- A full server refuses the write. Without a fence, no commit passes either.
  if type(written) == 'table' and written.err then redis.call('DEL', fence) end
  return registered
end
