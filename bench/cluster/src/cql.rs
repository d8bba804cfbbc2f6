//! The client of Cassandra: conditional statements in a closed loop, on one thread, as
//! `crates/load` does it over HTTP.
//!
//! ```text
//!   one thread ─▶ tasks, one a client ─▶ the driver: the key's first replica ─▶ a connection to it
//! ```
//!
//! Statements are prepared, consistency is `QUORUM` and `SERIAL`. The driver has as many
//! connections to each node as there are clients, and sends all statements of a key to the same
//! replica: two that coordinate the same key at once would take ballots from each other.

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

/// What clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A write to one of many keys, if the key has the value that all of them have.
    Equal,
    /// The same, all to one key.
    EqualHot,
    /// A write to one key that must not be there, but is.
    Absent,
}

/// What plain statements at a fixed rate saw, half of them writes.
pub(crate) struct Steady {
    /// Nanoseconds from the intended start of reads …
    pub(crate) get: Histogram<u64>,
    /// … and of writes.
    pub(crate) put: Histogram<u64>,
    /// Statements that failed.
    pub(crate) failed: u64,
}

/// What a closed loop saw.
pub(crate) struct Seen {
    /// Nanoseconds, of all statements that were answered as they should be.
    pub(crate) latency: Histogram<u64>,
    /// Statements that failed, or were answered otherwise.
    pub(crate) failed: u64,
    /// What the first of them said.
    pub(crate) why: Option<String>,
    pub(crate) took: Duration,
}
