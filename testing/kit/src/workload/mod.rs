//! Workloads: clients that write and read while faults are injected.
//!
//! ```text
//!  writers  concurrent clients that write, delete and read, and record writes in the ledger
//!  prober   clients at a fixed rate, with latencies and the longest gap
//!  fill     many keys once, as fast as the nodes accept them
//!  clients  threads that run until the scenario stops them
//!  curve    figures second by second, as CSV and SVG
//! ```

pub mod clients;
pub mod curve;
pub mod fill;
pub mod prober;
pub mod writers;
