//! What to send, where, how fast and for how long.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::keys::Keys;

/// Most connections of one run: a loopback client has some 28,000 ports, a process by default
/// 1,024 files; more than this is another kind of test.
const MAX_CONNECTIONS: usize = 20_000;

/// Longest value in bytes: one is copied into each request.
const MAX_VALUE_LEN: usize = 16 << 20;

const SECOND: u64 = 1_000_000_000;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// By plan, this many a second over all connections, whatever the server does.
    Open(u64),
    /// Each connection sends when it has its answer.
    Closed,
}

/// Writes a request for the key of this number, whole, to the end of the buffer; the flag says
/// whether it is to be a write, which is counted as a `PUT` whatever its method.
pub type Write = fn(put: bool, number: u64, out: &mut Vec<u8>);

/// What to send, where, how fast and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub target: SocketAddr,
    /// Further servers of the same cluster: connections are dealt over all of them.
    pub others: Vec<SocketAddr>,
    /// What writes the requests; `None` = `GET`s and `PUT`s of `path` and key, as follows.
    pub write: Option<Write>,
    /// Path and query up to the key, which is appended: `/v0/entity?id=`.
    pub path: String,
    /// Connections, 1–20,000, each with at most one request in flight.
    pub connections: usize,
    /// Open or closed loop.
    pub pace: Pace,
    /// How long requests become due.
    pub duration: Duration,
    /// At most this many requests; `u64::MAX` leaves it to `duration`.
    pub limit: u64,
    /// How long after `duration` to go on with what is due. What is not done by then counts as
    /// "at least this long".
    pub drain: Duration,
    /// An answer that takes longer is counted as a timeout, and still waited for.
    pub timeout: Duration,
    /// Percent of requests that are `PUT`s; the others are `GET`s.
    pub put_percent: u8,
    /// The keys.
    pub keys: Keys,
    /// Bytes of a `PUT`'s value, random.
    pub value_len: usize,
    /// Seed of keys, values and the mix: one seed, one sequence of requests.
    pub seed: u64,
}

impl Plan {
    /// Uniform `GET`s of 16-byte keys on 64 connections in a closed loop for 10 s.
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            others: Vec::new(),
            write: None,
            path: "/v0/entity?id=".to_owned(),
            connections: 64,
            pace: Pace::Closed,
            duration: Duration::from_secs(10),
            limit: u64::MAX,
            drain: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            put_percent: 0,
            keys: Keys::default(),
            value_len: 64,
            seed: 1,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = if self.connections == 0 || self.connections > MAX_CONNECTIONS {
            "connections must be 1–20,000"
        } else if matches!(self.pace, Pace::Open(rate) if rate == 0 || rate > SECOND) {
            "the rate must be 1–1,000,000,000 requests a second"
        } else if self.put_percent > 100 {
            "the share of PUTs must be 0–100 percent"
        } else if self.value_len > MAX_VALUE_LEN {
            "a value must be at most 16 MiB"
        } else if self.duration.is_zero() || self.duration > Duration::from_secs(24 * 3600) {
            "the duration must be more than 0 and at most 24 h"
        } else if self.path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            "the path holds a blank or a control byte: percent-encode it"
        } else {
            return self.keys.check();
        };
        Err(Error::Plan(wrong))
    }
}

/// When slot `slot` is due, in nanoseconds from the start.
pub(crate) fn slot_at(slot: u64, rate: u64) -> u64 {
    let nanos = u128::from(slot) * u128::from(SECOND) / u128::from(rate);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// Why a run did not take place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan can't be carried out.
    #[error("the load plan is wrong: {0}")]
    Plan(&'static str),
    /// No connection at the start.
    #[error("can't open {connections} connections to {target}: {cause}; nothing was sent")]
    Connect {
        /// The server.
        target: SocketAddr,
        /// How many were asked for.
        connections: usize,
        /// What the first that failed said.
        cause: io::Error,
    },
    /// The operating system refused something the generator needs.
    #[error("the load generator stopped, its figures are lost: {what}: {cause}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::slot_at;

    #[test]
    fn slots_do_not_drift() {
        assert_eq!(slot_at(0, 60_000), 0);
        assert_eq!(slot_at(1, 3), 333_333_333);
        assert_eq!(slot_at(60_000 * 3600, 60_000), 3_600_000_000_000);
        assert_eq!(slot_at(u64::MAX, 1), u64::MAX);
    }
}
