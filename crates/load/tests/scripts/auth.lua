-- Asks for a token first, then uses it: the content of an answer changes the next requests.

local token = nil
local path = "/token"

request = function()
   return wrk.format("GET", path)
end

response = function(status, headers, body)
   if not token and status == 200 then
      token = headers["X-Token"]
      path = "/with/" .. body
      wrk.headers["X-Token"] = token
   end
end
