-- Fails the script, which does not wait for such data and does not overwrite it.
local function fail_foreign(key, what)
  error('FOREIGN ' .. key .. ' holds something that is not ' .. what, 0)
end

