-- Numbers the threads, counts requests and responses in each, and writes all counts in `done`.

local threads = {}

function setup(thread)
   thread:set("id", #threads + 1)
   thread:set("settings", { name = "t", nested = { 1, 2, { deep = true } } })
   table.insert(threads, thread)
end

function init(args)
   requests = 0
   responses = 0
   arguments = args[1] .. "," .. args[2]
   where = tostring(wrk.thread.addr)
end

function request()
   requests = requests + 1
   if requests == 3 then
      wrk.thread:stop()
   end
   return wrk.format("GET", "/" .. id .. "/" .. settings.name .. settings.nested[2])
end

function response(status, headers, body)
   responses = responses + 1
end

function done(summary, latency, requests)
   local file = io.open(threads[1]:get("arguments"):match("[^,]*"), "w")
   for _, thread in ipairs(threads) do
      file:write(string.format("thread %d made %d requests, got %d responses, %s\n",
         thread:get("id"), thread:get("requests"), thread:get("responses"), thread:get("where")))
   end
   file:write(string.format("%d requests in %d us, %d bytes, errors %d %d %d %d %d\n",
      summary.requests, summary.duration, summary.bytes, summary.errors.connect,
      summary.errors.read, summary.errors.write, summary.errors.status, summary.errors.timeout))
   file:write(string.format("latency %d %d %.1f %.1f p50 %d p100 %d\n", latency.min, latency.max,
      latency.mean, latency.stdev, latency:percentile(50), latency:percentile(100)))
   local value, count = latency(2)
   file:write(string.format("#%d, second %d %d times, ranked %d %d\n", #latency, value, count,
      latency[1], latency[10]))
   for index = 1, #latency do
      local value, count = latency(index)
      file:write(string.format(" %d:%d", value, count))
   end
   file:write(string.format(", beyond %d:%d\n", latency(#latency + 2)))
   file:write(string.format("rates %d %d %d\n", requests.min, requests.max, #requests))
   file:close()
end
