-- include: members, read

-- Returns whether a hold has all its members, and none has ended.
local function is_held(set, owner, count, at)
  for _, member in ipairs(members(owner, count)) do
    local ends = read('ZSCORE', set, member)
    if not ends or tonumber(ends) <= at then return false end
  end
  return true
end
