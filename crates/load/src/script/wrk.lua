-- The contents of a script's Lua state, as in wrk's manual: the table `wrk`. The generator sets
-- `scheme`, `host`, `port`, `path`, `headers`, `addrs`, `lookup`, `connect` and `time_us`, and
-- calls the functions that this chunk returns.

local find, sub, byte = string.find, string.sub, string.byte
local out = require("string.buffer").new()

wrk = { method = "GET", headers = {} }

-- If several servers share a thread: the values of `wrk` for each server, the index of the server
-- whose values `wrk` has now, and the set of all servers' hosts.
local servers, aimed, hosts

-- The constant request of a script without a `request` function.
local fixed

-- Gives `wrk` the values of another server, except those that the script has changed.
local function select_server(index)
   local old, new = servers[aimed], servers[index]
   if wrk.host == old.host then wrk.host = new.host end
   if wrk.port == old.port then wrk.port = new.port end
   if wrk.path == old.path then wrk.path = new.path end
   if wrk.headers["Host"] == old.authority then
      wrk.headers["Host"] = new.authority
   end
   aimed, fixed = index, nil
end

local function share(list)
   servers, aimed, hosts = list, 1, {}
   for _, server in ipairs(list) do
      hosts[server.authority] = true
   end
end

-- The exit code that `done` has set by `os.exit`, and whether `done` is running.
local code_of_exit, is_over

-- Outside of `done`, `os.exit` is an error, because the run would end without its figures.
function os.exit(code)
   if is_over then
      code_of_exit = (code == nil or code == true) and 0 or code == false and 1 or tonumber(code)
      -- `os.exit` must not return. The caller of `done` asks for the code.
      error("os.exit", 0)
   end
   local said = code == nil and "" or tostring(code)
   error("os.exit(" .. said .. ") would end the run without its figures: a thread ends with " ..
      "wrk.thread:stop()", 2)
end

local function check(value, what)
   local kind = type(value)
   if kind ~= "string" and kind ~= "number" then
      error(what .. " is a " .. kind .. ", and must be a string", 3)
   end
end

-- Missing arguments are taken from `wrk`. Length and host are put into the table of headers that
-- the caller gave, because scripts look for them there.
function wrk.format(method, path, headers, body)
   method  = method  or wrk.method
   path    = path    or wrk.path
   headers = headers or wrk.headers
   body    = body    or wrk.body

   check(method, "the method (wrk.method or wrk.format's first argument)")
   check(path, "the path (wrk.path or wrk.format's second argument)")
   local host = headers["Host"]
   if not host or hosts and hosts[host] then
      headers["Host"] = wrk.headers["Host"]
   end
   headers["Content-Length"] = body and #tostring(body) or nil

   out:reset():put(method, " ", path, " HTTP/1.1\r\n")
   for name, value in pairs(headers) do
      out:put(name, ": ", tostring(value), "\r\n")
   end
   out:put("\r\n", body and tostring(body) or "")
   return out:tostring()
end

function wrk.setup(thread)
   if type(setup) == "function" then
      setup(thread)
   end
end

-- Older scripts call `wrk.init` from their own `init`. `wrk.init` must not call `init` again then.
local begun = false

function wrk.init(args)
   if not wrk.headers["Host"] then
      local host = find(wrk.host, ":", 1, true) and "[" .. wrk.host .. "]" or wrk.host
      wrk.headers["Host"] = wrk.port and host .. ":" .. wrk.port or host
   end
   if type(init) == "function" and not begun then
      begun = true
      init(args)
   end
   fixed = wrk.format()
   wrk.request = function()
      fixed = fixed or wrk.format()
      return fixed
   end
end

local function one_string(text)
   if type(text) ~= "string" then
      error("request() must return the request as a string, not a " .. type(text), 0)
   end
   return text
end

local function milliseconds(time)
   if type(time) ~= "number" or not (time >= 0) then
      error("delay() must return milliseconds from 0 on, not " .. tostring(time), 0)
   end
   return time
end

-- Uses only functions that LuaJIT compiles to machine code, which excludes patterns.
local function fields(head)
   local headers = {}
   local at = find(head, "\n", 1, true)
   while at do
      local colon = find(head, ":", at, true)
      local stop = find(head, "\n", at + 1, true)
      if not colon or not stop then
         break
      end
      if colon < stop then
         local first, last = colon + 1, stop - 1
         while byte(head, first) == 32 do
            first = first + 1
         end
         if byte(head, last) == 13 then
            last = last - 1
         end
         headers[sub(head, at + 1, colon - 1)] = sub(head, first, last)
      end
      at = stop
   end
   return headers
end

-- Globals are looked up at each call, because a script may replace its functions at any time.
return {
   share    = share,
   select_server = select_server,
   fixed    = function() return type(request) ~= "function" end,
   listens  = function() return type(response) == "function" end,
   delays   = function() return type(delay) == "function" end,
   reports  = function() return type(done) == "function" end,
   setup    = function(thread) wrk.setup(thread) end,
   init     = function(args) wrk.init(args) end,
   request  = function()
      local make = request or wrk.request
      if type(make) ~= "function" then
         error("request must be a function, not a " .. type(make), 0)
      end
      return one_string(make())
   end,
   response = function(status, head, body) response(status, fields(head), body) end,
   delay    = function() return milliseconds(delay()) end,
   done     = function(summary, latency, requests)
      is_over = true
      done(summary, latency, requests)
   end,
   exits    = function() return code_of_exit end,
   flush    = function() io.stdout:flush() end,
}
