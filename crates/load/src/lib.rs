//! An open-loop load generator for HTTP/1.1.
//!
//! A *closed* loop sends the next request when the last one is answered: while the server stalls,
//! nothing is sent, and the stall is one sample. An *open* loop sends by a plan fixed beforehand,
//! and counts latency from the moment that the plan says, so a stall is as many samples as there
//! were users waiting:
//!
//! ```text
//!  slot        0    1    2    3    4    5    6    7        slot i is due at i / rate
//!  connection  0    1    2    0    1    2    0    1        slots are dealt over all connections
//!              │────│──▶ │    │
//!              │         └ the connection is busy: slot 2 waits in its queue, its clock runs
//!              └ intended ─▶ written ─▶ done
//! ```
//!
//! One thread, one epoll; a connection has one request in flight. See [`run`].

pub mod cli;
mod connection;
pub mod import;
mod interrupt;
mod keys;
mod known;
mod outcome;
mod plan;
pub mod record;
mod reply;
mod run;
pub mod script;
pub mod search;
pub mod server;
mod trial;
pub mod url;

pub use interrupt::until_interrupted;
pub use keys::{KeyOrder, Keys};
pub use known::Known;
pub use outcome::{Errors, Latencies, Outcome, Statuses, Warning};
pub use plan::{Error, Pace, Plan, Write};
pub use run::run;
