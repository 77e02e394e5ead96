-- Returns the header of an entry and its fence, or nil and 0. The whole header is checked: what
-- only this script takes for an entry would stay in the way.
local function entry_at(key)
  local header, sixteen = read('GETRANGE', key, 0, 87) or '', ('%d'):rep(16)
  local fence = string.match(header, '^bw1[vu](' .. sixteen .. ')' .. sixteen .. ('%x'):rep(52))
  if not fence then return nil, 0 end
  return header, tonumber(fence)
end

