//! An open-loop load generator for HTTP/1.1.
//!
//! A *closed* loop sends the next request when the last one is answered. While the server stalls, a
//! closed loop sends nothing, and the stall counts as one sample. An *open* loop sends by a plan
//! that is fixed beforehand, and measures latency from the planned time, so that a stall yields one
//! sample for each request that users would have waited for:
//!
//! ```text
//!  slot        0    1    2    3    4    5    6    7        slot i is due at i / rate
//!  connection  0    1    2    0    1    2    0    1        slots are dealt over all connections
//!              │────│──▶ │    │
//!              │         └ the connection is busy: slot 2 waits in its queue, its clock runs
//!              └ intended ─▶ written ─▶ done
//! ```
//!
//! Each thread has its own connections, epoll, slots and histograms, and publishes its counts once
//! a second: see [`run_under`]. A connection has at most one request in flight.

pub mod cli;
pub mod coldhot;
pub mod compare;
mod connection;
mod control;
mod error;
mod hdrlog;
pub mod import;
mod interrupt;
mod keys;
pub mod machine;
mod outcome;
mod plan;
pub mod print;
mod publish;
pub mod record;
mod reply;
pub mod report;
mod request;
mod run;
pub mod rundir;
mod saved;
mod schedule;
pub mod script;
pub mod search;
pub mod server;
mod server_profile;
mod tally;
mod timeline;
pub mod tls;
mod trial;
pub mod url;
mod values;
mod warning;
mod worker;
mod zipf;

pub use control::{Control, Interval, IntervalCallback};
pub use error::Error;
pub use interrupt::interrupt_flag;
pub use keys::{KeyOrder, Keys};
pub use outcome::{HistogramSummary, Outcome, UnreachableAddress, counts, latencies};
pub use plan::{
    Arrival, KEY, MAX_CONNECTIONS, MAX_DURATION, MAX_RATE, MAX_TARGETS, MAX_THREADS, MAX_VALUE_LEN,
    Pace, Plan, Requests, Target, TargetMode, Write,
};
pub use request::Method;
pub use run::{run, run_under};
pub use server_profile::ServerProfile;
pub use tally::{Errors, Latencies, NonHttp, Statuses, Tally};
pub use warning::RunWarning;
