-- Sets the mark of a name to a tick, if the owner has the lease and the tick is possible. The mark
-- is the last tick that was begun, and the owner of its turn until the turn is done. A tick is a
-- text of 16 digits, which compares as a number.
-- The step `forget` removes the mark, whatever the key holds; with `seen`, only that mark.
-- Returns {1 if it was set or removed, or 0; the mark before, or ''; the server's time}.
-- step: 'begin' if the tick is greater than the mark, 'again' if it may also be the mark and is not
--   done, 'done', or 'forget'
-- seen: the text of the mark to forget, or ''
local lease, mark = unpack(KEYS)
local owner, tick, step, life_ms, seen = unpack(ARGV)

local before = read('GET', mark) or ''
local last, by = string.match(before, '^(%d+):?(%x*)$')
if step == 'forget' then
  local is_meant = seen == '' or seen == before
  return {is_meant and redis.call('DEL', mark) or 0, last and before or '', digits(now())}
end
local is_same = last == tick and (step == 'done' or by == owner or step == 'again' and by ~= '')
local is_set = is_held_by(lease, owner) and (not last or tick > last or is_same)
if is_set then
  if step == 'done' then keep(mark, life_ms) end
  redis.call('SET', mark, step == 'done' and tick or tick .. ':' .. owner, 'PX', life_ms)
end
return {is_set and 1 or 0, last and before or '', digits(now())}
