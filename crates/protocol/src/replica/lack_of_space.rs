//! The time at which this node's store last refused a write because the disk is full.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Now;

/// Time for which a refusal counts, in microseconds: other nodes send hints again after at most
/// four seconds (`MAX_WAIT_MICROS` of `transfer`).
const LASTS_MICROS: u64 = 5_000_000;

/// The last refusal of a write for lack of space, in microseconds of the monotonic clock; 0 = there
/// was none.
#[derive(Debug, Default)]
pub(crate) struct LackOfSpace(AtomicU64);

impl LackOfSpace {
    /// Notes that the store refused a write because the disk is full.
    pub(crate) fn note(&self, now: Now) {
        self.0.store(now.mono.max(1), Ordering::Relaxed);
    }

    /// True if the store refused a write for lack of space within the last five seconds. Small
    /// writes may succeed all the same.
    pub(crate) fn is_recent(&self, now: Now) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last > 0 && now.mono < last.saturating_add(LASTS_MICROS)
    }
}
