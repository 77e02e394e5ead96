-- Returns whether a claim fits beside the units that are out. It needs units or, if that is nil, a
-- sole hold.
local function fits(out, units, limit)
  return (units and out + units - limit or out) <= 0
end

