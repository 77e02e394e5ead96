local again, unheard_ms, is_heard = grant_next(at_us, fence_ms, 0)
left = unheard_ms or math.max(redis.call('PTTL', lease), first_end(shared, at))
return { refused + again, left, has_lapsed, is_heard and 1 or 0, unpack(stands) }
