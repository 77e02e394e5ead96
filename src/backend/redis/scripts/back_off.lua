-- Reads the record of failed loads of a name.
--
-- Returns {'failed', ms for which it still backs off, failures, message}, or nil.
local failure = KEYS[1]

-- include: failure_at
local wait_ms, failures, message = failure_at(failure)
return failures > 0 and { 'failed', wait_ms, failures, message } or nil
