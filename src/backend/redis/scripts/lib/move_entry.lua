-- Makes a staged entry the entry of the name, with this text at this byte. Returns whether it was
-- there: a full server refuses to write it.
local function move_entry(staged, entry, ttl_ms, at, text)
  if redis.call('PEXPIRE', staged, ttl_ms) == 0 then return false end
  redis.call('SETRANGE', staged, at, text)
  redis.call('RENAME', staged, entry)
  return true
end

