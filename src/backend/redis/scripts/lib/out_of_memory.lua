-- How a full server begins its refusal of a command. The refusal of an ACL may have a user's name.
local OUT_OF_MEMORY = 'OOM command not allowed'
