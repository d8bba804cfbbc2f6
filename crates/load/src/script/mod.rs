//! Lua scripts as wrk and wrk2 run them: a state for each thread, and one of its own for `setup`
//! and `done`.
//!
//! ```text
//!  main state     load ─▶ setup(thread) × threads                     ─▶ done(summary, latency …)
//!                              │ set/get                                    ▲ get
//!  thread states  load ────────┴─▶ init(args) ─▶ request() ⇄ response() ────┘
//! ```

mod error;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use error::{Error, Phase};

use crate::url::Url;

/// What scripts are made from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The script; without one, a fixed request for the URL.
    pub file: Option<PathBuf>,
    /// What `wrk.scheme`, `wrk.host`, `wrk.port` and `wrk.path` say.
    pub url: Url,
    /// `wrk.headers`, in order.
    pub headers: Vec<(String, String)>,
    /// What `init` gets.
    pub args: Vec<String>,
    /// The addresses behind the URL: what `thread.addr` begins with is the first.
    pub addresses: Vec<SocketAddr>,
}

/// One thread's script.
#[derive(Debug)]
pub struct Script {
    stopped: Arc<AtomicBool>,
    fixed: Option<Vec<u8>>,
    pipeline: usize,
    address: SocketAddr,
}

impl Script {
    /// Appends what is to be sent next: one request, or [`Self::pipeline`] of them.
    pub fn request(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        out.extend_from_slice(self.fixed.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Whether [`Self::response`] has to be called for each answer.
    pub fn wants_response(&self) -> bool {
        false
    }

    /// Hands over an answer: the head as it came, status line included, and the body without its
    /// chunks' framing.
    pub fn response(&mut self, _status: u16, _head: &[u8], _body: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    /// How long to wait before the next request; none if the script does not say.
    pub fn delay(&mut self) -> Result<Option<Duration>, Error> {
        Ok(None)
    }

    /// Whether the script has stopped its thread.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether all requests are the same: ask once, send that.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Requests in what one call of [`Self::request`] appends, and so the answers to it: 1 unless
    /// the script pipelines.
    pub fn pipeline(&self) -> usize {
        self.pipeline
    }

    /// Where this thread connects to: the script may have chosen it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The scripts of a run.
#[derive(Debug)]
pub struct Scripts {
    threads: Vec<Script>,
}

impl Scripts {
    /// Loads the script once for each thread, and runs its `setup` and `init`.
    pub fn load(source: &Source, threads: usize) -> Result<Self, Error> {
        let url = &source.url;
        let fixed = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", url.path, url.authority());
        let threads = (0..threads)
            .map(|_| Script {
                stopped: Arc::new(AtomicBool::new(false)),
                fixed: Some(fixed.clone().into_bytes()),
                pipeline: 1,
                address: source.addresses[0],
            })
            .collect();
        Ok(Self { threads })
    }

    /// One script for each thread.
    pub fn threads(&mut self) -> &mut [Script] {
        &mut self.threads
    }

    /// Whether the script has a `done`, which [`Self::done`] runs.
    pub fn wants_done(&self) -> bool {
        false
    }

    /// Runs the script's `done`, if it has one.
    pub fn done(&mut self, _summary: &Summary<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// What `done` is told.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a> {
    /// How long the run took.
    pub duration: Duration,
    /// Answers.
    pub requests: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Connections that could not be made.
    pub connect: u64,
    /// Failed while reading.
    pub read: u64,
    /// Failed while writing.
    pub write: u64,
    /// Answers with a status above 399.
    pub status: u64,
    /// Answers later than the timeout.
    pub timeout: u64,
    /// Latencies from the intended start in nanoseconds.
    pub latency: &'a hdrhistogram::Histogram<u64>,
    /// Answers a second, a sample for each thread and second.
    pub requests_per_second: &'a [u64],
}
