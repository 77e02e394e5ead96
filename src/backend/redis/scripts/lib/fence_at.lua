-- include: read

-- Returns the last fence under a key, or 0 if there is none, and whether its grant was committed.
local function fence_at(key)
  local value = read('GET', key)
  if not value then return 0, false end
  local fence, mark = string.match(value, '^(%d+)(:?c?)$')
  return tonumber(fence) or 0, mark == ':c'
end
