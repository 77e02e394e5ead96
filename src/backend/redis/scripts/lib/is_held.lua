-- include: members

-- Returns whether a hold has all its members, and none has ended.
local function is_held(set, owner, count, at)
  for _, member in ipairs(members(owner, count)) do
    local ends = redis.pcall('ZSCORE', set, member)
    if type(ends) ~= 'string' or tonumber(ends) <= at then return false end
  end
  return true
end
