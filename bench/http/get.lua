-- GETs of keys chosen at random.  wrk -s get.lua URL -- [KEYS]
-- For up to a million keys, all requests are built before the run, so that the figures are not
-- limited by wrk's own CPU time. For more keys, they would take too much memory, and each request
-- is built when it is sent.

local KEYS_IN_MEMORY = 1000000

local keys = 200000
local requests = {}

local function make(number)
   return "GET /v0/entity?id=k" .. string.format("%015d", number) ..
      " HTTP/1.1\r\nHost: localhost\r\n\r\n"
end

init = function(args)
   keys = tonumber(args[1]) or keys
   math.randomseed(1)
   if keys <= KEYS_IN_MEMORY then
      for number = 0, keys - 1 do
         requests[number] = make(number)
      end
   end
end

request = function()
   local number = math.random(0, keys - 1)
   return requests[number] or make(number)
end
