//! Lua scripts as wrk and wrk2 run them: a state for each thread, and one of its own for `setup`
//! and `done`.
//!
//! ```text
//!  main state     load ─▶ setup(thread) for each                        done(summary, latency …)
//!                              │ set/get                                  ▲ get
//!  thread states  load ────────┴─▶ init(args) ─▶ request() ⇄ response() ──┘
//! ```
//!
//! Without a script the request is fixed, made by the same `wrk.lua`.

mod error;
mod pipeline;
mod state;
mod summary;
mod thread;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mlua::{Function, LuaString, Table};

pub use error::{Error, Phase};
pub use summary::Summary;

use crate::url::Url;
use state::State;
use summary::Stats;
use thread::{Shared, Thread};

/// LuaJIT raises errors by unwinding, through the Rust functions that scripts call too.
const _: () = assert!(cfg!(panic = "unwind"), "with panic = \"abort\" an error of a script kills");

/// What errors call the script if there is none.
const NO_FILE: &str = "(none)";

/// What scripts are made from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The script; without one, a fixed request for the URL.
    pub file: Option<PathBuf>,
    /// What `wrk.scheme`, `wrk.host`, `wrk.port` and `wrk.path` say.
    pub url: Url,
    /// All URLs whose servers the connections of each thread share, in the order of the plan's
    /// targets, the first being `url`; empty if there is no other.
    pub spread: Vec<Url>,
    /// `wrk.headers`, in order.
    pub headers: Vec<(String, String)>,
    /// What `init` gets, the URL first: in Lua it is `args[0]`.
    pub args: Vec<String>,
    /// The addresses behind the URL: what `thread.addr` begins with is the first. Never empty.
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
    /// What `request` returned when it was looked at, still to be sent.
    first: Option<Vec<u8>>,
    pipeline: usize,
    fixed: bool,
    /// How many servers the thread's connections share, and which is the next request's.
    servers: usize,
    aimed: usize,
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
            aimed: 0,
            state,
            shared,
        };
        let lua = &script.state.lua;
        let wrk: mlua::Result<Table> = lua.globals().raw_get("wrk");
        wrk.and_then(|wrk| wrk.set("thread", script.thread()))
            .map_err(|error| script.state.failed(Phase::Load, &error))?;
        Ok(script)
    }

    fn thread(&self) -> Thread {
        Thread { state: self.state.lua.weak(), shared: Arc::clone(&self.shared) }
    }

    /// Runs `init`, and looks at what the first request is.
    fn init(&mut self, args: &[String]) -> Result<(), Error> {
        self.state.init(args)?;
        self.fixed = self.state.says("fixed");
        self.response = self.state.says("listens").then(|| self.state.call("response"));
        self.delay = self.state.says("delays").then(|| self.state.call("delay"));
        let mut first = Vec::new();
        self.request(&mut first)?;
        self.pipeline = pipeline::count(&first)
            .map_err(|error| self.state.wrong(Phase::Request, error.to_string()))?;
        self.first = Some(first);
        Ok(())
    }

    /// Says which of several servers the next request is for: `wrk.host`, `wrk.port`, `wrk.path`
    /// and the header `Host` become those of its URL, but for what the script has changed.
    pub fn aim(&mut self, target: usize) -> Result<(), Error> {
        if target == self.aimed || self.servers < 2 {
            return Ok(());
        }
        self.aimed = target;
        // Lua counts from 1.
        let aimed = self.state.call("aim").call::<()>(target + 1);
        aimed.map_err(|error| self.state.failed(Phase::Request, &error))?;
        // It was for another server.
        self.first = None;
        Ok(())
    }

    /// Appends what is to be sent next: one request, or [`Self::pipeline`] of them.
    pub fn request(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(first) = self.first.take() {
            out.extend_from_slice(&first);
            return Ok(());
        }
        let text: LuaString =
            self.request.call(()).map_err(|error| self.state.failed(Phase::Request, &error))?;
        out.extend_from_slice(&text.as_bytes());
        Ok(())
    }

    /// Whether [`Self::response`] has to be called for each answer.
    pub fn wants_response(&self) -> bool {
        self.response.is_some()
    }

    /// Hands over an answer: the head as it came, status line included, and the body without its
    /// chunks' framing.
    pub fn response(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), Error> {
        let Some(response) = &self.response else { return Ok(()) };
        response
            .call((status, LuaString::wrap(head), LuaString::wrap(body)))
            .map_err(|error| self.state.failed(Phase::Response, &error))
    }

    /// Whether [`Self::delay`] has anything to say.
    pub fn wants_delay(&self) -> bool {
        self.delay.is_some()
    }

    /// How long to wait before the next request; none if the script does not say.
    pub fn delay(&mut self) -> Result<Option<Duration>, Error> {
        let Some(delay) = &self.delay else { return Ok(None) };
        let milliseconds: f64 =
            delay.call(()).map_err(|error| self.state.failed(Phase::Delay, &error))?;
        // Forever is longer than any run.
        Ok(Some(Duration::try_from_secs_f64(milliseconds / 1e3).unwrap_or(Duration::MAX)))
    }

    /// Whether the script has stopped its thread.
    pub fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Whether all requests are the same: ask once, send that.
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Requests in what one call of [`Self::request`] appends, and so the answers to it: 1 unless
    /// the script pipelines.
    pub fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// Where this thread connects to, if the script has chosen that in its `setup`.
    pub fn chosen_address(&self) -> Option<SocketAddr> {
        self.shared.chosen()
    }
}

/// The scripts of a run.
#[derive(Debug)]
pub struct Scripts {
    main: State,
    threads: Vec<Script>,
}

impl Scripts {
    /// Loads the script `threads` times from each of `sources`, which differ in their URLs, and
    /// runs `setup` and `init`. One that does not come to an end here is the user's to interrupt.
    pub fn load(sources: &[Source], threads: usize) -> Result<Self, Error> {
        let main = State::load(&sources[0])?;
        let mut scripts = Self { main, threads: Vec::with_capacity(sources.len() * threads) };
        let all = sources.iter().flat_map(|source| (0..threads).map(move |n| (source, n)));
        for (source, thread) in all {
            let mut script = Script::load(source)?;
            // That of the thread's first connection.
            script.aim(thread % source.spread.len().max(1))?;
            let setup = scripts.main.call("setup").call::<()>(script.thread());
            setup.map_err(|error| scripts.main.failed(Phase::Setup, &error))?;
            scripts.main.flush();
            script.init(&source.args)?;
            scripts.threads.push(script);
        }
        Ok(scripts)
    }

    /// One script for each thread.
    pub fn threads(&mut self) -> &mut [Script] {
        &mut self.threads
    }

    /// Whether the script has a `done`, which [`Self::done`] runs.
    pub fn wants_done(&self) -> bool {
        self.main.says("reports")
    }

    /// Runs the script's `done`, if it has one. Returns what the process is to end with, if it
    /// says so (`os.exit`).
    pub fn done(&mut self, summary: &Summary<'_>) -> Result<Option<u8>, Error> {
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
            ended.map_err(|error| self.main.failed(Phase::Done, &error))?;
        }
        self.main.flush();
        // A shell sees the lower eight bits of it.
        Ok(exits.map(|code| (code as i64 & 0xff) as u8))
    }
}
