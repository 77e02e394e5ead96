-- Writes all members of a hold with one score, after these options of ZADD. Returns its reply.
local function write_hold(set, owner, count, score, ...)
  local words, start = { ... }, owner .. ':'
  -- A command makes a text of a number each time that it stands there.
  score = string.format('%.0f', score)
  for index = 1, count do
    words[#words + 1] = score
    words[#words + 1] = index == 1 and owner or start .. index
  end
  return redis.call('ZADD', set, unpack(words))
end

