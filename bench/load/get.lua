-- GETs of one key after another. Each request is built when it is sent, as in the scripts of most
-- published load tests, so that the figures include the cost of Lua.
local number = 0

request = function()
   number = number + 1
   return wrk.format("GET", "/v0/entity?id=key" .. number)
end
