-- Returns the message that pushes an entry; or a bare wake-up, if the entry is larger than the
-- limit.
local function entry_message(entry, limit)
  return #entry <= tonumber(limit) and 'e' .. entry or 'w'
end
