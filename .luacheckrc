-- The settings of `luacheck` for the scripts of the Redis backend, which `scripts/lint-lua` calls.
std = "lua51"
read_globals = { "ARGV", "KEYS", redis = { fields = { "call", "error_reply", "pcall" } } }
-- A parameter of a part may have the name of a local of the script (W431).
ignore = { "431" }
max_line_length = 100
max_code_line_length = 100
