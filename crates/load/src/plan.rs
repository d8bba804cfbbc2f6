//! The plan of a run: its requests, targets, rate and duration.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::keys::Keys;
use crate::server::Endpoint;
use crate::tls::Tls;
use crate::url;

/// Maximum number of connections of one run. A client on loopback has about 28,000 ports. More
/// connections need another kind of test.
pub const MAX_CONNECTIONS: usize = 20_000;

/// Maximum number of threads of one run. No known machine gains from more threads.
pub const MAX_THREADS: usize = 256;

/// Maximum number of URLs of one run.
pub const MAX_TARGETS: usize = 64;

/// Maximum length of a value in bytes. Each request contains a copy of its value.
pub const MAX_VALUE_LEN: usize = 16 << 20;

/// Maximum of the warm-up, of the duration and of the drain.
pub const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// Highest rate over all targets, in requests per second. No client reaches this rate, and a client
/// that falls behind can still count every due request.
pub const MAX_RATE: f64 = 1e7;

/// Lowest rate, in requests per second: one request in about eleven days.
const MIN_RATE: f64 = 1e-6;

/// Placeholder of the key in a target's path.
pub const KEY: &str = "{key}";

/// Rule for the times at which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// In an open loop: this many requests per second over all connections, whatever the server
    /// does.
    Open(f64),
    /// In a closed loop: each connection sends its next request when its last request is answered.
    Closed,
}

/// Distribution of due times in an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Equal intervals. Slot i belongs to connection i mod connections, as in wrk2.
    Even,
    /// Exponential intervals, as from many independent users. Any free connection of a thread takes
    /// the next slot.
    Poisson,
}

/// Distribution of the load over several targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetMode {
    /// Each target gets the full rate, connections and threads, as from its own client.
    Each,
    /// The targets share the load: connection k goes to target k mod targets.
    Spread,
}

/// A URL that receives requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host and port, for messages and for the `Host` header of the requests that this crate
    /// generates.
    pub name: String,
    /// Addresses of the target. Connections are spread over all addresses that can be reached.
    pub addresses: Vec<SocketAddr>,
    /// TLS settings, if the target uses TLS.
    pub tls: Option<Tls>,
    /// Value of the `Authorization` header in requests for the server's metrics, such as `Bearer
    /// TOKEN`.
    pub authorization: Option<String>,
    /// Path and query, in which `{key}` stands for the key. Without `{key}`, all requests of a
    /// method are equal.
    pub path: String,
}

impl Target {
    /// Creates a plain-text target with one address and no token.
    pub fn new(address: SocketAddr, path: &str) -> Self {
        let (name, path) = (address.to_string(), path.to_owned());
        Self { name, addresses: vec![address], tls: None, authorization: None, path }
    }

    /// Returns `http://HOST:PORT`, or `https://…`.
    pub(crate) fn origin(&self) -> String {
        url::origin(self.tls.is_some(), &self.name)
    }

    /// Returns the endpoint at `address` of this target, for requests outside the plan.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> Endpoint {
        let Self { name, tls, authorization, .. } = self;
        let (host, tls, authorization) = (name.clone(), tls.clone(), authorization.clone());
        Endpoint { address, host, tls, authorization }
    }
}

/// Appends a complete request for key `number` to `out`. With `put`, the request must be a write,
/// and counts as a `PUT` whatever its method.
pub type Write = fn(put: bool, number: u64, out: &mut Vec<u8>);

/// Source of the requests.
#[derive(Debug, Clone, Copy)]
pub enum Requests {
    /// `GET`, `PUT` and `DELETE` of the target's path with keys.
    Keys,
    /// A function of the caller, which is called for each request.
    Custom(Write),
    /// A Lua script for each thread.
    Script,
}

/// The plan of a run: its requests, targets, rate and duration.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The servers that receive the requests.
    pub targets: Vec<Target>,
    /// Distribution of the load over the targets.
    pub target_mode: TargetMode,
    /// Threads, 1–256, no more than connections; connection k belongs to thread k mod threads.
    pub threads: usize,
    /// Connections, 1–20,000, each with at most one request in flight.
    pub connections: usize,
    /// Open or closed loop.
    pub pace: Pace,
    /// Distribution of due times in an open loop.
    pub arrival: Arrival,
    /// Time at the start in which requests are sent but not counted.
    pub warmup: Duration,
    /// Time after the warm-up during which requests become due.
    pub duration: Duration,
    /// Maximum number of requests. With `u64::MAX`, only `duration` ends the run.
    pub limit: u64,
    /// Time after `duration` in which due requests may finish. A request that is then unanswered
    /// counts as unfinished, with its latency up to then.
    pub drain: Duration,
    /// Time after which an answer counts as a timeout. The generator still waits for the answer.
    pub timeout: Duration,
    /// Source of the requests.
    pub requests: Requests,
    /// Percentage of `PUT` requests.
    pub put_percent: u8,
    /// Percentage of `DELETE` requests. The remaining requests are `GET`s.
    pub delete_percent: u8,
    /// Keys of the requests, and their order.
    pub keys: Keys,
    /// Length in bytes of a `PUT`'s value, which is derived from the seed and the key.
    pub value_len: usize,
    /// True if each read value is compared with the value that the seed, the key and the length
    /// yield.
    pub verify: bool,
    /// Further header lines, `Name: value`. A `Host` line replaces the target's `Host`.
    pub headers: Vec<String>,
    /// True if requests that a script pipelines count as one latency, which ends at the last
    /// answer.
    pub batch_latency: bool,
    /// Seed of keys, values, mix and arrivals. The same seed yields the same requests.
    pub seed: u64,
}

impl Plan {
    /// Creates a plan of `GET`s of uniform 16-byte keys, on 64 connections of one thread in a
    /// closed loop for 10 s.
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

    /// Returns the factor on rate, threads and connections: the number of targets with
    /// [`TargetMode::Each`], otherwise 1.
    pub(crate) fn copies(&self) -> usize {
        match self.target_mode {
            TargetMode::Each => self.targets.len(),
            TargetMode::Spread => 1,
        }
    }

    /// Returns the number of threads over all copies. Each thread needs a script of its own. With
    /// [`TargetMode::Each`], thread w serves the target `w / threads`.
    pub fn workers(&self) -> usize {
        self.threads * self.copies()
    }

    /// Returns the number of connections over all threads and targets.
    pub fn all_connections(&self) -> usize {
        self.connections * self.copies()
    }

    /// Returns the number of requests per second over all targets, or `None` in a closed loop.
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

/// Returns true for a valid header name (RFC 9110 section 5.1).
fn is_token(name: &str) -> bool {
    let other = b"!#$%&'*+-.^_`|~";
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || other.contains(&b))
}
