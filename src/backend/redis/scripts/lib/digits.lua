-- Returns a fence or a time as 16 digits. tostring() would give 1.79e+15.
local function digits(number)
  return string.format('%016.0f', number)
end

