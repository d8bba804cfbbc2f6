//! The write-ahead log: one for the whole store, in numbered segments.
//!
//! ```text
//!  0000000007.wal    ┌ header ┬ group ┬ group ┬ group ┬ zeros (allocated ahead) … ┐
//!  0000000008.wal    ┌ zeros: allocated ahead, no header until it is used …       ┐
//! ```
//!
//! A *group* is what one `write` carried: the batches that waited together, under one sequence
//! number. Sequences rise by one from group to group, across segments, for ever. Every group says
//! which sequence was known to be durable when it was built. That is what tells a torn tail from a
//! damaged middle: if anything after a bad group proves that the bad one had been synced, it was
//! acknowledged, and recovery refuses; otherwise nothing from there on was, and the log ends there.
//!
//! Invariants:
//! * A segment is written by one process life only. Recovery records where it ended and opens the
//!   next; nothing is ever appended after a tail that a crash left (mistake 1 of
//!   `docs/reliability.md`).
//! * A segment's bytes are allocated before it is used, so the log runs out of space between
//!   groups, never in the middle of one.
//! * Sequences never restart, a sequence is never in two groups that recovery can both see.

mod format;
mod recover;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use format::{parse_segment_name, segment_name};
pub(crate) use recover::{Expected, LogEnd, Recovered, recover, refuse_stale};
pub(crate) use writer::{Prepared, Wal, prepare};
