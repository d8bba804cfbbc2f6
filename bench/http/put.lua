-- PUTs to keys chosen at random, with values of 64 random bytes.  wrk -s put.lua URL -- [KEYS]
-- All requests are built before the run, so that the figures are not limited by wrk's own CPU time.

local VALUE_LEN = 64
local POOL_LEN = 65536

local keys = 200000
local requests = {}

init = function(args)
   keys = tonumber(args[1]) or keys
   math.randomseed(1)
   local bytes = {}
   for i = 1, POOL_LEN + VALUE_LEN do
      bytes[i] = string.char(math.random(33, 126))
   end
   local pool = table.concat(bytes)
   local head = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " .. VALUE_LEN .. "\r\n\r\n"
   for number = 0, keys - 1 do
      local at = math.random(1, POOL_LEN)
      requests[number] = "PUT /v0/entity?id=k" .. string.format("%015d", number) .. head ..
         string.sub(pool, at, at + VALUE_LEN - 1)
   end
end

request = function()
   return requests[math.random(0, keys - 1)]
end
