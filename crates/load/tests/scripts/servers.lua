-- Distributes its threads over the addresses of the host.

local next_address = 1

function setup(thread)
   local found = wrk.lookup(wrk.host, wrk.port or "http")
   local there = {}
   for _, address in ipairs(found) do
      if wrk.connect(address) then
         table.insert(there, address)
      end
   end
   thread.addr = there[(next_address - 1) % #there + 1]
   next_address = next_address + 1
end
