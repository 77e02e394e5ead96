-- Reads the entry under a key, up to the byte `last`. Returns these bytes and its fence, or nil and
-- 0 if it cannot be read. An entry may have megabytes, and its header is the first 44 bytes. The
-- whole header is checked: an entry that only this script takes for one would stay in the way.
local function entry_at(key, last)
  local value = redis.pcall('GETRANGE', key, 0, last)
  if type(value) ~= 'string' then return nil, 0 end
  local header = '^bw1[vu](' .. ('%d'):rep(16) .. ')' .. ('%x'):rep(24)
  local fence = string.match(value, header)
  if not fence then return nil, 0 end
  return value, tonumber(fence)
end
