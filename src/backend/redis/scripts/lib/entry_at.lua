-- include: read

-- Reads the entry under a key, up to the byte `last`, or its header of 96 bytes if that is nil.
-- Returns these bytes and its fence, or nil and 0 if it cannot be read. An entry may have
-- megabytes. The whole header is checked: an entry that only this script takes for one would stay
-- in the way.
local function entry_at(key, last)
  local value = read('GETRANGE', key, 0, last or 95)
  if not value then return nil, 0 end
  local start = '[vu](' .. ('%d'):rep(16) .. ')'
  local fence = string.match(value, '^bw2' .. start .. ('%d'):rep(16) .. ('%x'):rep(60))
    or string.match(value, '^bw1' .. start .. ('%x'):rep(24))
  if not fence then return nil, 0 end
  return value, tonumber(fence)
end
