if is_stored then
  publish_to_all(channel, string.sub(value, #own + 1), 'e' .. bytes)
  return STORED + refused
end

