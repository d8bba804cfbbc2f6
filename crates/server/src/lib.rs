//! A kvorum node without sockets, clocks and threads: the layer between the protocol ([`protocol`])
//! and the engine ([`lsm`]). The process and the simulator drive the same code.
//!
//! ```text
//!   driver (src/, crates/sim)     this crate                              layer below
//!   ──────────────────────────    ────────────────────────────────────    ────────────────────
//!   clients, messages, time ───▶  Loop: effects, waiting writes, hints    ─▶ protocol::Protocol
//!   time, peers seen ──────────▶  Task: background work of the node       ─▶ protocol::Background
//!   range reads ───────────────▶  Range: retries of busy nodes            ─▶ protocol::Scan
//!   pages ─────────────────────▶  Pages: pages from this node's store     ─▶ lsm::Engine
//!   start, stop ───────────────▶  StartingNode, BoundedClock              ─▶ lsm::Engine
//!   repair of a wrong clock ───▶  Ahead                                   ─▶ lsm::Engine
//! ```
//!
//! A driver supplies time and bytes, and implements [`Driver`]. Only the driver waits. Functions of
//! this crate do not block, except the reads and starts whose docs say so.

#![forbid(unsafe_code)]

mod backlog;
mod clock;
mod compare;
mod driver;
mod event_loop;
pub mod hints;
mod idempotency;
pub mod identity;
pub mod link;
mod pages;
mod prefix_estimate;
mod range;
mod repair_clock;
mod start;
mod start_error;
mod store;
mod task;
#[cfg(test)]
mod test_node;
mod usage;

pub use clock::{BoundedClock, NoVersion, refuse_after_last_day};
pub use compare::{compare, discard};
pub use driver::{
    Delivered, Driver, HintQuery, Outcome, StoreRead, TaskDriver, WriteBatcher, WriteError,
    WritePurpose,
};
pub use event_loop::Loop;
pub use idempotency::decode_entry;
pub use pages::{PageWork, Pages};
pub use prefix_estimate::StoredWalk;
pub use range::{PageResult, RETRY_MICROS, Range, RangeStep};
pub use repair_clock::Ahead;
pub use start::{StartedNode, StartingNode};
pub use start_error::StartError;
pub use store::{Store, purge_rule, store_error};
pub use task::{Task, TaskEvent};
pub use usage::{RecentRecords, Shares, Usage};
