-- Returns a fence as text: 16 digits, where tostring() would give 1.79e+15.
local function fence_text(fence)
  return string.format('%016.0f', fence)
end
