-- include: end_lease

-- Makes a fence the last one of its name and ends the lease, so that no load under way is stored.
-- Returns what `end_lease` returns.
local function burn(lease, fence, text, fence_ms)
  local registered = end_lease(lease)
  local written = redis.pcall('SET', fence, text, 'PX', fence_ms)
  -- A full server refuses the write. Without a fence, no commit passes either.
  if type(written) == 'table' and written.err then redis.call('DEL', fence) end
  return registered
end
