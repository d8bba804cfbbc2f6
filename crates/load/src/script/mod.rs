//! Lua scripts, as in wrk and wrk2: a Lua state for each thread, and a main state for `setup` and
//! `done`.
//!
//! ```text
//!  main state     load ─▶ setup(thread) for each                        done(summary, latency …)
//!                              │ set/get                                  ▲ get
//!  thread states  load ────────┴─▶ init(args) ─▶ request() ⇄ response() ──┘
//! ```
//!
//! Without a script, the same `wrk.lua` makes a fixed request.

mod pipeline;
mod script_error;
mod state;
mod summary;
mod thread;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mlua::{Function, LuaString, Table};

pub use script_error::{Error, Phase};
pub use summary::Summary;

use crate::url::Url;
use state::State;
use summary::Stats;
use thread::{ScriptThread, Shared};

/// LuaJIT raises errors by unwinding, also through Rust functions that scripts call. With `panic =
/// "abort"`, an error would end the process.
const _: () = assert!(cfg!(panic = "unwind"), "with panic = \"abort\" an error of a script kills");

/// File name in errors if there is no script.
const NO_FILE: &str = "(none)";

/// The inputs of a script.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path of the script. Without a path, the source makes a fixed request for the URL.
    pub file: Option<PathBuf>,
    /// Values of `wrk.scheme`, `wrk.host`, `wrk.port` and `wrk.path`.
    pub url: Url,
    /// URLs of all servers that share the thread's connections, in the order of the plan's targets,
    /// `url` first. Empty if each URL has threads of its own.
    pub spread: Vec<Url>,
    /// `wrk.headers`, in order.
    pub headers: Vec<(String, String)>,
    /// Arguments of `init`. The URL comes first: in Lua it is `args[0]`.
    pub args: Vec<String>,
    /// Addresses of the URL, of which the first is the initial `thread.addr`. Never empty.
    pub addresses: Vec<SocketAddr>,
}

/// One thread's script.
#[derive(Debug)]
pub struct Script {
    state: State,
    shared: Arc<Shared>,
    request: Function,
    response: Option<Function>,
    delay: Option<Function>,
    /// The first request, which was made only to inspect the script, and is not sent yet.
    first: Option<Vec<u8>>,
    pipeline: usize,
    fixed: bool,
    /// Number of servers that the thread's connections share. `selected` is the server of the next
    /// request.
    servers: usize,
    selected: usize,
}

impl Script {
    fn load(source: &Source) -> Result<Self, Error> {
        let state = State::load(source)?;
        let shared = Arc::new(Shared::new(source.addresses[0]));
        let script = Self {
            request: state.call("request"),
            response: None,
            delay: None,
            first: None,
            pipeline: 1,
            fixed: false,
            servers: source.spread.len(),
            selected: 0,
            state,
            shared,
        };
        let lua = &script.state.lua;
        let wrk: mlua::Result<Table> = lua.globals().raw_get("wrk");
        wrk.and_then(|wrk| wrk.set("thread", script.thread()))
            .map_err(|error| script.state.wrap_error(Phase::Load, &error))?;
        Ok(script)
    }

    fn thread(&self) -> ScriptThread {
        ScriptThread { state: self.state.lua.weak(), shared: Arc::clone(&self.shared) }
    }

    /// Runs `init`, and inspects the first request.
    fn init(&mut self, args: &[String]) -> Result<(), Error> {
        self.state.init(args)?;
        self.fixed = self.state.call_predicate("fixed");
        self.response = self.state.call_predicate("listens").then(|| self.state.call("response"));
        self.delay = self.state.call_predicate("delays").then(|| self.state.call("delay"));
        let mut first = Vec::new();
        self.request(&mut first)?;
        self.pipeline = pipeline::count(&first)
            .map_err(|error| self.state.wrong(Phase::Request, error.to_string()))?;
        self.first = Some(first);
        Ok(())
    }

    /// Sets the server of the next request: `wrk.host`, `wrk.port`, `wrk.path` and the `Host`
    /// header take the values of the server's URL, except those that the script has changed.
    pub fn select_server(&mut self, target: usize) -> Result<(), Error> {
        if target == self.selected || self.servers < 2 {
            return Ok(());
        }
        self.selected = target;
        // Lua counts from 1.
        let selected = self.state.call("select_server").call::<()>(target + 1);
        selected.map_err(|error| self.state.wrap_error(Phase::Request, &error))?;
        // The first request was made for another server.
        self.first = None;
        Ok(())
    }

    /// Appends the next [`Self::pipeline`] requests to `out`.
    pub fn request(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(first) = self.first.take() {
            out.extend_from_slice(&first);
            return Ok(());
        }
        let text: LuaString =
            self.request.call(()).map_err(|error| self.state.wrap_error(Phase::Request, &error))?;
        out.extend_from_slice(&text.as_bytes());
        Ok(())
    }

    /// Returns true if [`Self::response`] must be called for each answer.
    pub fn wants_response(&self) -> bool {
        self.response.is_some()
    }

    /// Passes an answer to the script: the received head with its status line, and the body without
    /// the framing of chunks.
    pub fn response(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), Error> {
        let Some(response) = &self.response else { return Ok(()) };
        response
            .call((status, LuaString::wrap(head), LuaString::wrap(body)))
            .map_err(|error| self.state.wrap_error(Phase::Response, &error))
    }

    /// Returns true if the script defines a delay, which [`Self::delay`] returns.
    pub fn wants_delay(&self) -> bool {
        self.delay.is_some()
    }

    /// Returns the time to wait before the next request, or `None` if the script has no `delay`.
    pub fn delay(&mut self) -> Result<Option<Duration>, Error> {
        let Some(delay) = &self.delay else { return Ok(None) };
        let milliseconds: f64 =
            delay.call(()).map_err(|error| self.state.wrap_error(Phase::Delay, &error))?;
        // An infinite delay is longer than any run.
        Ok(Some(Duration::try_from_secs_f64(milliseconds / 1e3).unwrap_or(Duration::MAX)))
    }

    /// Returns true if the script has stopped its thread.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Returns true if all requests are the same, so that one call of [`Self::request`] is enough.
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Returns the number of requests that one call of [`Self::request`] appends, which is also the
    /// number of their answers. The number is 1 unless the script pipelines.
    pub fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// Returns the address that this thread connects to, if the script's `setup` chose one.
    pub fn chosen_address(&self) -> Option<SocketAddr> {
        self.shared.chosen_address()
    }
}

/// The scripts of a run.
#[derive(Debug)]
pub struct Scripts {
    main: State,
    threads: Vec<Script>,
}

impl Scripts {
    /// Loads the script `threads` times for each of `sources`, which differ in their URLs, and runs
    /// `setup` and `init`. If the script never returns, the user must interrupt the program.
    pub fn load(sources: &[Source], threads: usize) -> Result<Self, Error> {
        let main = State::load(&sources[0])?;
        let mut scripts = Self { main, threads: Vec::with_capacity(sources.len() * threads) };
        let all = sources.iter().flat_map(|source| (0..threads).map(move |n| (source, n)));
        for (source, thread) in all {
            let mut script = Script::load(source)?;
            // The thread's first connection goes to this server.
            script.select_server(thread % source.spread.len().max(1))?;
            let setup = scripts.main.call("setup").call::<()>(script.thread());
            setup.map_err(|error| scripts.main.wrap_error(Phase::Setup, &error))?;
            scripts.main.flush();
            script.init(&source.args)?;
            scripts.threads.push(script);
        }
        Ok(scripts)
    }

    /// Returns the scripts, one for each thread.
    pub fn threads(&mut self) -> &mut [Script] {
        &mut self.threads
    }

    /// Returns true if the script has a `done`, which [`Self::run_done`] runs.
    pub fn wants_done(&self) -> bool {
        self.main.call_predicate("reports")
    }

    /// Runs the script's `done`, if there is one. Returns the exit code that the script sets with
    /// `os.exit`, or `None`.
    pub fn run_done(&mut self, summary: &Summary<'_>) -> Result<Option<u8>, Error> {
        if !self.wants_done() {
            return Ok(None);
        }
        let latency = Stats::latency(summary.latency);
        let requests = Stats::rates(summary.requests_per_second);
        let done = self.main.call("done");
        let ended = summary
            .table(&self.main.lua)
            .and_then(|summary| done.call::<()>((summary, latency, requests)));
        let exits: Option<f64> = self.main.call("exits").call(()).unwrap_or_default();
        if exits.is_none() {
            ended.map_err(|error| self.main.wrap_error(Phase::Done, &error))?;
        }
        self.main.flush();
        // A shell sees only the lower eight bits of an exit code.
        Ok(exits.map(|code| (code as i64 & 0xff) as u8))
    }
}
