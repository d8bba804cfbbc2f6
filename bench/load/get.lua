-- GET of one key after the other, made one by one as the scripts of most reports do.
local number = 0

request = function()
   number = number + 1
   return wrk.format("GET", "/v0/entity?id=key" .. number)
end
