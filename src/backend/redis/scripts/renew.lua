local at = math.floor(now() / 1000)
for one = 1, #KEYS / 2 do
  local key = KEYS[2 * one - 1]
  local owner, life_ms, _, members = unpack(ARGV, 4 * one - 3, 4 * one)
  local is_held = false
  if renewed[one] then
    is_held = renewed[one] == 1
  elseif members == '0' then
    -- Fails the script, unless the key holds another type of data.
    read('GET', key)
  else
    is_held = extend_hold(key, owner, tonumber(members), at, life_ms)
  end
  renewed[one] = is_held and 1 or 0
end
return renewed
