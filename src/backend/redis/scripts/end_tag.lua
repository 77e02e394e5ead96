-- Gives a tag the next number of its namespace, notifies the local tiers, and returns the number.
-- Without a tag, returns the last number, and begins to count if there is no number.
-- number, tag: the last number, and when the tag ended and expired last, as two numbers
-- life_ms: how long both are kept
-- expires: '1' if the entries are kept for failed loads
-- tiers, message: the channel of local tiers, or '', and the text of the message before the number
local number, tag = unpack(KEYS)
local life_ms, expires, tiers, message = unpack(ARGV)

local last = fence_at(number)
if not tag and last > 0 then return last end
keep(number, life_ms)
local next_number = math.max(now(), last + 1)
local text = digits(next_number)
redis.call('SET', number, text, 'PX', life_ms)
if not tag then return next_number end
local sixteen = '(' .. ('%d'):rep(16) .. ')'
local ended, expired = string.match(read('GET', tag) or '', '^' .. sixteen .. sixteen .. '$')
ended, expired = ended or digits(0), expired or digits(0)
if expires == '1' then expired = text else ended = text end
-- The tiers receive the push before any caller has the answer.
if tiers ~= '' then redis.pcall('PUBLISH', tiers, message .. text) end
redis.call('SET', tag, ended .. expired, 'PX', life_ms)
return next_number
