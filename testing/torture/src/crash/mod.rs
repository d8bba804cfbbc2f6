//! Processes that are killed, stopped or suspended.

pub mod counters;
pub mod kill;
pub mod lives;
pub mod pause;
pub mod scans;
