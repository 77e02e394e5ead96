-- Pushes an entry to all waiters. A staged one, or more than 1 MiB for all processes together, is
-- announced with their number: they fetch it one after another.
-- bytes: the entry, or nil if it was staged
-- fence, size: its fence and its bytes, or nil if it was not stored
local function publish_entry(channel, registered, bytes, fence, size)
  -- An id has 16 digits. The waiters of a sharded channel are not known.
  local crowd, message = #registered / 17, 'w'
  if bytes and (#bytes * crowd <= 1048576 or not fence) then
    message = 'e' .. bytes
  elseif fence then
    message = 'a' .. fence .. size .. ',' .. crowd
  end
  publish_to_all(channel, registered, message)
end

