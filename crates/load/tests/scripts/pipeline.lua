-- Returns three requests in one string.

init = function(args)
   wrk.init(args)

   local three = {}
   three[1] = wrk.format("GET", "/?first")
   three[2] = wrk.format("POST", "/?second", nil, "body")
   three[3] = wrk.format("GET", "/?third")
   all = table.concat(three)
end

request = function()
   return all
end
