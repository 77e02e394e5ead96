-- Returns the last fence under a key, or 0, and whether its grant was committed.
local function fence_at(key)
  local fence, mark = string.match(read('GET', key) or '', '^(%d+)(:?c?)$')
  return tonumber(fence) or 0, mark == ':c'
end

