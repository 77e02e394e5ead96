-- Returns how many units of a set of holds are out.
local function count_holds(set, at)
  local count = read('ZCOUNT', set, '(' .. at, '+inf')
  if not count or redis.call('PTTL', set) == -1 then
    fail_foreign(set, 'a set of permits or readers')
  end
  return count
end

