-- Marks the last fence as committed. So a commit that is sent twice is recognised, even if the
-- entry that it wrote is gone.
local function mark_committed(key, text)
  redis.pcall('SET', key, text .. ':c', 'KEEPTTL')
end
