-- Waits between requests.

local waits = { 10, 0, 2.5 }
local at = 0

function delay()
   at = at + 1
   return waits[at] or -1
end
