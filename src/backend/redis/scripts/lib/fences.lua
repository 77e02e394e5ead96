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
