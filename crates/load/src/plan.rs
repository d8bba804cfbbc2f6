//! What to send, where, how fast and for how long.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::keys::Keys;
use crate::server::Endpoint;
use crate::tls::Tls;
use crate::url;

/// Most connections of one run: a loopback client has some 28,000 ports; more than this is another
/// kind of test.
pub const MAX_CONNECTIONS: usize = 20_000;

/// Most threads of one run: beyond the cores of any machine they only get in each other's way.
pub const MAX_THREADS: usize = 256;

/// Most URLs of one run.
pub const MAX_TARGETS: usize = 64;

/// Longest value in bytes: one is copied into each request.
pub const MAX_VALUE_LEN: usize = 16 << 20;

/// Longest run: warm-up, duration and drain are at most this each.
pub const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// Highest rate over all targets: more than any client sends, and little enough to be counted one
/// by one while it does not.
pub const MAX_RATE: f64 = 1e7;

/// Lowest rate: one request in about eleven days.
const MIN_RATE: f64 = 1e-6;

/// Stands for the key in a target's path.
pub const KEY: &str = "{key}";

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// By plan, this many a second over all connections, whatever the server does.
    Open(f64),
    /// Each connection sends when it has its answer.
    Closed,
}

/// How the moments at which requests are due lie in an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// At even distances; slot i belongs to connection i mod connections, as wrk2 has it.
    Even,
    /// At random, as from many users who know nothing of each other: distances are exponential.
    /// Whichever connection of a thread is free takes the next.
    Poisson,
}

/// What several targets share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetMode {
    /// Each target gets all of the rate, the connections and the threads, as from a client of its
    /// own.
    Each,
    /// They share them: connection k is to target k mod targets.
    Spread,
}

/// One URL that gets requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As people know it; `Host` of the requests that are made here.
    pub name: String,
    /// Where it is. Connections are dealt over all addresses that can be reached.
    pub addresses: Vec<SocketAddr>,
    /// How TLS with it is made, if it has TLS.
    pub tls: Option<Tls>,
    /// What it is shown when it is asked for its figures, if anything: `Bearer TOKEN`.
    pub authorization: Option<String>,
    /// Path and query; `{key}` stands for the key. Without it, all requests are alike.
    pub path: String,
}

impl Target {
    /// A target with one address, in clear and without a token.
    pub fn new(address: SocketAddr, path: &str) -> Self {
        let (name, path) = (address.to_string(), path.to_owned());
        Self { name, addresses: vec![address], tls: None, authorization: None, path }
    }

    /// `http://HOST:PORT`, or `https://…`.
    pub(crate) fn origin(&self) -> String {
        url::origin(self.tls.is_some(), &self.name)
    }

    /// One address of it, to be asked for what is not part of the plan.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> Endpoint {
        let Self { name, tls, authorization, .. } = self;
        let (host, tls, authorization) = (name.clone(), tls.clone(), authorization.clone());
        Endpoint { address, host, tls, authorization }
    }
}

/// Writes a request for the key of this number, whole, to the end of the buffer; the flag says
/// whether it is to be a write, which is counted as a `PUT` whatever its method.
pub type Write = fn(put: bool, number: u64, out: &mut Vec<u8>);

/// Who makes the requests.
#[derive(Debug, Clone, Copy)]
pub enum Requests {
    /// `GET`, `PUT` and `DELETE` of the target's path with keys.
    Keys,
    /// A function of the caller, for each request.
    Custom(Write),
    /// A Lua script for each thread.
    Script,
}

/// What to send, where, how fast and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The servers that get the requests.
    pub targets: Vec<Target>,
    /// What they share.
    pub target_mode: TargetMode,
    /// Threads; connection k belongs to thread k mod threads. 1–256, no more than connections.
    pub threads: usize,
    /// Connections, 1–20,000, each with at most one request in flight.
    pub connections: usize,
    /// Open or closed loop.
    pub pace: Pace,
    /// How an open loop's requests lie in time.
    pub arrival: Arrival,
    /// How long requests are sent before any is counted.
    pub warmup: Duration,
    /// How long, after that, requests become due.
    pub duration: Duration,
    /// At most this many requests; `u64::MAX` leaves it to `duration`.
    pub limit: u64,
    /// How long after `duration` to go on with what is due. What is not done by then counts as
    /// "at least this long".
    pub drain: Duration,
    /// An answer that takes longer is counted as a timeout, and still waited for.
    pub timeout: Duration,
    /// Who makes the requests.
    pub requests: Requests,
    /// Percent of requests that are `PUT`s.
    pub put_percent: u8,
    /// Percent that are `DELETE`s; the others are `GET`s.
    pub delete_percent: u8,
    /// Which keys are asked for, and in which order.
    pub keys: Keys,
    /// Bytes of a `PUT`'s value, which follows from the seed and the key.
    pub value_len: usize,
    /// Whether to check that each value read is the one that was written with this seed and length.
    pub verify: bool,
    /// Further header lines, `Name: value`. A `Host` takes the place of the target's.
    pub headers: Vec<String>,
    /// Whether requests that a script sends together have one latency, when the last is answered.
    pub batch_latency: bool,
    /// Seed of keys, values, mix and arrivals: one seed, one sequence of requests.
    pub seed: u64,
}

impl Plan {
    /// `GET`s of uniform 16-byte keys on 64 connections of one thread in a closed loop for 10 s.
    pub fn new(target: Target) -> Self {
        Self {
            targets: vec![target],
            target_mode: TargetMode::Spread,
            threads: 1,
            connections: 64,
            pace: Pace::Closed,
            arrival: Arrival::Even,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(10),
            limit: u64::MAX,
            drain: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            requests: Requests::Keys,
            put_percent: 0,
            delete_percent: 0,
            keys: Keys::default(),
            value_len: 64,
            verify: false,
            headers: Vec::new(),
            batch_latency: false,
            seed: 1,
        }
    }

    /// How often the rate, connections and threads exist.
    pub(crate) fn copies(&self) -> usize {
        match self.target_mode {
            TargetMode::Each => self.targets.len(),
            TargetMode::Spread => 1,
        }
    }

    /// Threads that take part: as many as there must be scripts. Thread w serves, with
    /// [`TargetMode::Each`], the target `w / threads`.
    pub fn workers(&self) -> usize {
        self.threads * self.copies()
    }

    /// Connections over all threads and targets.
    pub fn all_connections(&self) -> usize {
        self.connections * self.copies()
    }

    /// Requests a second over all targets, if there is a plan.
    pub fn rate(&self) -> Option<f64> {
        match self.pace {
            Pace::Open(rate) => Some(rate * self.copies() as f64),
            Pace::Closed => None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_numbers()?;
        self.check_targets()?;
        for line in &self.headers {
            let named = line.split_once(':').is_some_and(|(name, _)| is_token(name));
            if !named || line.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
                return Err(Error::Plan(format!("the header {line:?} is not `Name: value`")));
            }
        }
        self.keys.check()
    }

    pub(crate) fn check_numbers(&self) -> Result<(), Error> {
        let wrong = if self.connections == 0 || self.all_connections() > MAX_CONNECTIONS {
            let all = self.all_connections();
            format!("{all} connections: there must be 1–{MAX_CONNECTIONS} over all targets")
        } else if self.threads == 0 || self.threads > MAX_THREADS {
            format!("{} threads: there must be 1–{MAX_THREADS}", self.threads)
        } else if self.connections < self.threads {
            format!(
                "{} connections for {} threads: each thread needs one (-c at least -t)",
                self.connections, self.threads
            )
        } else if self.rate().is_some_and(|rate| !(MIN_RATE..=MAX_RATE).contains(&rate)) {
            let rate = self.rate().unwrap_or(0.0);
            format!("{rate} requests a second over all targets: it must be 0.000001–10,000,000")
        } else if u16::from(self.put_percent) + u16::from(self.delete_percent) > 100 {
            let (put, delete) = (self.put_percent, self.delete_percent);
            format!("{put} % PUT and {delete} % DELETE: together at most 100 %")
        } else if self.value_len > MAX_VALUE_LEN {
            format!("a value of {} bytes: it must be at most 16 MiB", self.value_len)
        } else if self.duration.is_zero() || self.duration > MAX_DURATION {
            format!("a duration of {:?}: it must be more than 0 and at most 24 h", self.duration)
        } else if self.warmup > MAX_DURATION || self.drain > MAX_DURATION {
            "warm-up and drain must be at most 24 h each".to_owned()
        } else if self.verify && !matches!(self.requests, Requests::Keys) {
            "values can be verified only where this program makes the requests".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Plan(wrong))
    }

    fn check_targets(&self) -> Result<(), Error> {
        if self.targets.is_empty() || self.targets.len() > MAX_TARGETS {
            let count = self.targets.len();
            return Err(Error::Plan(format!("{count} targets: there must be 1–{MAX_TARGETS}")));
        }
        if self.connections < self.targets.len() && self.target_mode == TargetMode::Spread {
            let (connections, targets) = (self.connections, self.targets.len());
            return Err(Error::Plan(format!(
                "{connections} connections spread over {targets} targets: each needs one"
            )));
        }
        for Target { name, addresses, path, .. } in &self.targets {
            let wrong = if addresses.is_empty() {
                "has no address"
            } else if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
                "has a blank or a control byte in its path: percent-encode it"
            } else if name.bytes().any(|b| b <= b' ' || b == 0x7f) {
                "has a blank or a control byte in its name"
            } else if path.matches(KEY).count() > 1 {
                "has more than one {key} in its path"
            } else {
                continue;
            };
            return Err(Error::Plan(format!("the target {name:?} {wrong}")));
        }
        Ok(())
    }
}

/// A header's name, RFC 9110 section 5.1.
fn is_token(name: &str) -> bool {
    let other = b"!#$%&'*+-.^_`|~";
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || other.contains(&b))
}
