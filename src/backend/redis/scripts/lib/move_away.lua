-- include: read

-- A smaller entry is freed at once.
local LARGE = 262144

-- Moves a large entry to `trash`, which ends within a moment. A server frees a string in the script
-- that removes it, and this one between scripts. Returns whether the entry was large.
local function move_away(entry, trash)
  local more = read('GETRANGE', entry, LARGE, LARGE)
  if not more or more == '' then return false end
  redis.call('RENAME', entry, trash)
  redis.call('PEXPIRE', trash, 1)
  return true
end
