-- include: kept_ms

-- Returns whether a process keeps the entry of the claim at the head of a queue. That is so for
-- `ours`, a claim of the process that has just kept its entries.
local function head_waits(head, ours, deadlines, at)
  return string.sub(head, 1, 16) == string.sub(ours, 1, 16) or kept_ms(deadlines, head, at) > 0
end
