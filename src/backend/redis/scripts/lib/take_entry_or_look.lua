-- include: take_entry

-- How soon a claim looks again that has no entry, in milliseconds.
local LOOK_MS = 100

-- Takes an entry as `take_entry` does. A full server refuses it, and the claim does without it: no
-- push tells it of a release then, so it is to look again soon. `left` are the milliseconds after
-- which it looks if it has the entry. Returns those after which it is to look.
local function take_entry_or_look(left, ...)
  if pcall(take_entry, ...) then return left end
  return math.min(left, LOOK_MS)
end
