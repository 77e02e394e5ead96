-- include: again, alone

-- The heads of queues that a script which keeps many queues looks at before it leaves the others.
local HEADS = 100

-- Keeps several queues with `keep`, and returns its answers. A queue that it fails for answers
-- ALONE, so that it costs the others nothing. After much work the others answer AGAIN. The queues
-- stand in KEYS, each with this many keys, and in ARGV from `first`: for each the milliseconds of a
-- fence, the number of claims, and the claims.
--
-- A lock that is held needs no look at all that stands there. One queue in eight has it, so that
-- data of another kind is found, and one that is kept alone.
local function keep_each(keys_each, first, at, keep)
  local answers, spent = {}, 0
  for last = keys_each, #KEYS, keys_each do
    local fence_ms, claims = ARGV[first], ARGV[first + 1]
    local keys = { unpack(KEYS, last - keys_each + 1, last) }
    local named = { unpack(ARGV, first + 2, first + 1 + claims) }
    first = first + 2 + claims

    local before, answer = heads_seen, { AGAIN }
    -- Queues are kept each 640 ms, which is a multiple of eight.
    local looks = #KEYS == keys_each or (math.floor(at / 7) + last / keys_each) % 8 == 0
    if #KEYS == keys_each then
      answer = keep(keys, fence_ms, named, looks)
      if answer.err then return answer end
    elseif spent < HEADS then
      local is_kept, kept = pcall(keep, keys, fence_ms, named, looks)
      answer = is_kept and not kept.err and kept or { ALONE }
      -- A queue that is only kept has one head seen. To hand something over costs as much as some.
      spent = spent + math.max(heads_seen - before - 1, 0) + (answer[1] == 0 and 0 or 4)
    end
    answers[#answers + 1] = answer
  end
  return answers
end
