-- Returns the members of the set that stand for the hold of an owner: one for each of `count`
-- permits.
local function members(owner, count)
  local all = { owner }
  for index = 2, count do all[index] = owner .. ':' .. index end
  return all
end
