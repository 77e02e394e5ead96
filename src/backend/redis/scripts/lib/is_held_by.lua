-- Returns whether an owner has a lease, whatever else the key may hold.
local function is_held_by(lease, owner)
  return string.find(read('GET', lease) or '', owner, 1, true) == 1
end

