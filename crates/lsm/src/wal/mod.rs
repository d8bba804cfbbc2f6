//! The write-ahead log: one log for the whole store, in numbered segments.
//!
//! ```text
//!  0000000007.wal    ┌ header ┬ group ┬ group ┬ group ┬ zeros (allocated ahead) … ┐
//!  0000000008.wal    ┌ zeros: allocated ahead, no header until it is used …       ┐
//! ```
//!
//! A *group* is the content of one `write`: the batches that were queued together, under one
//! sequence number. Sequences rise by one from group to group, across segments and restarts.
//!
//! Every group carries the highest sequence known to be durable when the group was built. This
//! number distinguishes a torn tail from a damaged middle: if a later group or segment header
//! proves that a bad group had been synced, the writes of the bad group were acknowledged, and
//! recovery refuses to start. Otherwise no write from the bad group on was acknowledged as durable,
//! and the log ends before the bad group.
//!
//! Invariants:
//! * Only one run of the process writes to a segment. Recovery records the end of the segment and
//!   opens the next segment, so that no run appends after a torn tail (mistake 1 of
//!   `docs/results/reliability.md`).
//! * The bytes of a segment are allocated before its first use, so the log runs out of space
//!   between groups, never within one.
//! * Sequences never restart, and recovery never sees the same sequence in two groups.

mod format;
mod recover;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use format::{parse_segment_name, segment_name};
pub(crate) use recover::{ExpectedLog, RecoveredLog, SegmentEnd, check_not_stale, recover};
pub(crate) use writer::{PreparedSegment, Wal, prepare};
