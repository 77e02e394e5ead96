-- Tells the local tiers that an entry changes under this fence, before it does. A refusal is
-- ignored.
local function tell_tiers(tiers, lease, text)
  if tiers ~= '' then redis.pcall('PUBLISH', tiers, string.sub(lease, 1, -2) .. 'i' .. text) end
end

