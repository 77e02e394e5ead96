-- include: publish

-- Stands behind the fence in the lease of an entry if its holder may not publish, so that no push
-- tells of its end.
local UNTOLD = 'm'
-- How soon a claim that meets such a lease looks again, in milliseconds. The client adds up to 90.
local LOOK_UNTOLD_MS = 10

-- Marks a new lease if its holder may not publish. `try` is UNTOLD, or a channel without listeners
-- to try it with, or '' if the holder has published before.
local function mark_untold(lease, try)
  if try == '' or try ~= UNTOLD and publish(try, '') == PUBLISHED then return end
  redis.call('APPEND', lease, UNTOLD)
end
