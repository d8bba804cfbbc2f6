//! The Lua state of a thread: holds the table `wrk`, runs the script once, and has the functions
//! that the load generator calls.
#![allow(unsafe_code, reason = "scripts may load C modules, as wrk's may")]

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlua::{Function, Lua, LuaOptions, StdLib, Table, Value};

use super::script_error::{Error, Phase, WRK};
use super::thread::Address;
use super::{NO_FILE, Source};
use crate::url::Url;

/// Time limit of `wrk.connect`. Scripts use the call to test whether a server accepts connections,
/// not to measure its speed.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A Lua state, and the functions that `wrk.lua` returns.
#[derive(Debug)]
pub(super) struct State {
    pub(super) lua: Lua,
    calls: Table,
    file: String,
}

impl State {
    pub(super) fn load(source: &Source) -> Result<Self, Error> {
        let file = source.file.as_ref().map_or(NO_FILE.to_owned(), |p| p.display().to_string());
        // With caught panics, `pcall` would be a Rust function, and LuaJIT can't compile code that
        // calls Rust functions.
        let options = LuaOptions::new().catch_rust_panics(false);
        // SAFETY: scripts are the user's own programs, as with wrk, and may do anything that the
        // user may. Published scripts need `debug` (to find their own directory), `ffi` and C
        // modules (a JSON library), which the safe constructor does not have.
        let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, options) };
        let calls =
            prepare(&lua, source).map_err(|error| Error::from_lua(&file, Phase::Load, &error))?;
        let state = Self { lua, calls, file };
        if let Some(path) = &source.file {
            state.run(path)?;
        }
        Ok(state)
    }

    fn run(&self, path: &Path) -> Result<(), Error> {
        let text =
            std::fs::read(path).map_err(|cause| Error::Read { file: self.file.clone(), cause })?;
        // Skips a first line that begins with `#`, as Lua does, and keeps the line numbers of the
        // rest.
        let skip =
            if text.starts_with(b"#") { text.iter().position(|&b| b == b'\n') } else { None };
        let text = &text[skip.unwrap_or(0)..];
        let name = format!("@{}", self.file);
        let ran = self.lua.load(text).set_name(name).exec();
        ran.map_err(|error| self.wrap_error(Phase::Load, &error))?;
        self.flush();
        Ok(())
    }

    pub(super) fn wrap_error(&self, phase: Phase, error: &mlua::Error) -> Error {
        self.flush();
        Error::from_lua(&self.file, phase, error)
    }

    pub(super) fn wrong(&self, phase: Phase, message: impl Into<String>) -> Error {
        Error::Lua { place: self.file.clone(), phase, message: message.into() }
    }

    /// Returns one of the functions of `wrk.lua`.
    pub(super) fn call(&self, name: &str) -> Function {
        self.calls.raw_get(name).expect("wrk.lua returns it")
    }

    /// Calls one of the predicates of `wrk.lua`, which tell what the script defines.
    pub(super) fn call_predicate(&self, name: &str) -> bool {
        self.call(name).call(()).expect("it compares a type")
    }

    pub(super) fn init(&self, args: &[String]) -> Result<(), Error> {
        let table = self.lua.create_table().and_then(|table| {
            for (index, arg) in args.iter().enumerate() {
                table.raw_set(index, arg.as_str())?;
            }
            Ok(table)
        });
        table
            .and_then(|args| self.call("init").call::<()>(args))
            .map_err(|error| self.wrap_error(Phase::Init, &error))?;
        self.flush();
        Ok(())
    }

    /// Flushes the script's output, which C buffers, so that the output comes before later output
    /// of this process.
    pub(super) fn flush(&self) {
        // A closed stdout is reported when the figures are printed.
        let _ = self.call("flush").call::<()>(());
    }
}

/// Creates the table `wrk`.
fn prepare(lua: &Lua, source: &Source) -> mlua::Result<Table> {
    let calls: Table = lua.load(include_str!("wrk.lua")).set_name(format!("={WRK}")).eval()?;
    let wrk: Table = lua.globals().raw_get("wrk")?;
    let url = &source.url;
    wrk.raw_set("scheme", if url.secure { "https" } else { "http" })?;
    wrk.raw_set("host", url.host.as_str())?;
    wrk.raw_set("port", url.port.map(|port| port.to_string()))?;
    wrk.raw_set("path", url.path.as_str())?;
    let headers: Table = wrk.raw_get("headers")?;
    for (name, value) in &source.headers {
        headers.raw_set(name.as_str(), value.as_str())?;
    }
    if source.spread.len() > 1 {
        let servers = source.spread.iter().map(|url| server(lua, url));
        let servers = servers.collect::<mlua::Result<Vec<Table>>>()?;
        calls.raw_get::<Function>("share")?.call::<()>(servers)?;
    }
    wrk.raw_set("addrs", addresses(lua, &source.addresses)?)?;
    wrk.raw_set("lookup", lua.create_function(lookup)?)?;
    wrk.raw_set("connect", lua.create_function(|_, address: Address| Ok(connects(address.0)))?)?;
    wrk.raw_set("time_us", lua.create_function(|_, ()| Ok(microseconds()))?)?;
    Ok(calls)
}

/// Returns the `wrk` table's values for a URL.
fn server(lua: &Lua, url: &Url) -> mlua::Result<Table> {
    let server = lua.create_table()?;
    server.raw_set("host", url.host.as_str())?;
    server.raw_set("port", url.port.map(|port| port.to_string()))?;
    server.raw_set("path", url.path.as_str())?;
    server.raw_set("authority", url.authority())?;
    Ok(server)
}

fn addresses(lua: &Lua, addresses: &[SocketAddr]) -> mlua::Result<Table> {
    lua.create_sequence_from(addresses.iter().map(|&address| Address(address)))
}

/// Implements `wrk.lookup(host, service)`. The service is a port, `http` or `https`.
fn lookup(lua: &Lua, (host, service): (String, Value)) -> mlua::Result<Table> {
    let service = service.to_string()?;
    let port = match service.as_str() {
        "http" | "https" | "nil" => None,
        digits => Some(digits.parse().map_err(|_| {
            mlua::Error::runtime(format!(
                "{digits} is not a valid port: lookup takes 1 to 65535, http or https"
            ))
        })?),
    };
    let path = "/".to_owned();
    let secure = service == "https";
    let url = Url { text: host.clone(), secure, host, port, path, has_path: false };
    addresses(lua, &url.resolve().map_err(mlua::Error::runtime)?)
}

fn connects(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok()
}

fn microseconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as f64
}
