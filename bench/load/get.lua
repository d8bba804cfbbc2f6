-- GET of one key after another. Requests are made one by one, as in the scripts of most reports.
local number = 0

request = function()
   number = number + 1
   return wrk.format("GET", "/v0/entity?id=key" .. number)
end
