-- include: out_of_memory, take_entry

-- How soon a claim looks again that has no entry, in milliseconds.
local LOOK_MS = 100

-- Takes an entry as `take_entry` does. A full server refuses it, and the claim does without it: no
-- push tells it of a release then, so it is to look again soon. Any other refusal fails the script,
-- such as that of an ACL. `left` are the milliseconds after which the claim looks if it has the
-- entry. Returns those after which it is to look.
local function take_entry_or_look(left, ...)
  local is_taken, refusal = pcall(take_entry, ...)
  if is_taken then return left end
  -- `pcall` gives the refusal of a command as a text, or as a table with one.
  local text = type(refusal) == 'table' and refusal.err or tostring(refusal)
  if not string.find(text, OUT_OF_MEMORY, 1, true) then take_entry(...) end
  return math.min(left, LOOK_MS)
end
