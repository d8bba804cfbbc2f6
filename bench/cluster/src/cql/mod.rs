//! The Cassandra client: sends statements in a closed loop or at a fixed rate, on one thread, just
//! as `crates/load` sends requests over HTTP.
//!
//! ```text
//!   one thread ─▶ a task per client ─▶ driver: finds the key's first replica ─▶ a connection to it
//! ```
//!
//! Statements are prepared; consistency is `QUORUM` and `SERIAL`. The driver has as many
//! connections to each node as there are clients, and sends all statements of a key to the same
//! replica: if two replicas coordinated statements of one key, their Paxos ballots would compete.

#[cfg(not(feature = "cassandra"))]
mod absent;
#[cfg(feature = "cassandra")]
mod driver;

use std::time::Duration;

use hdrhistogram::Histogram;

#[cfg(not(feature = "cassandra"))]
pub(crate) use absent::Client;
#[cfg(feature = "cassandra")]
pub(crate) use driver::Client;

/// The statement that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatementKind {
    /// A write to one of many keys, on condition that the key has the value of all keys, which is
    /// true.
    Equal,
    /// A write to a single hot key, on condition that the key has the value of all keys, which is
    /// true.
    EqualHot,
    /// A write to one key on condition that the key does not exist, which is false.
    Absent,
}

/// Results of plain statements at a fixed rate, half of them writes.
pub(crate) struct FixedRateResults {
    /// Latencies of reads from the intended start, in nanoseconds.
    pub(crate) get: Histogram<u64>,
    /// Latencies of writes from the intended start, in nanoseconds.
    pub(crate) put: Histogram<u64>,
    /// Statements that failed.
    pub(crate) failed: u64,
}

/// Results of a closed loop.
pub(crate) struct LoopResults {
    /// Latencies of all statements with the expected answer, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Statements that failed, or had an unexpected answer.
    pub(crate) failed: u64,
    /// The first error.
    pub(crate) why: Option<String>,
    pub(crate) took: Duration,
}
