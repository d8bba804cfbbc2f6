//! Checks that a node makes before it stores a record. Most nodes have no check turned on.

use std::sync::atomic::{AtomicU8, Ordering};

/// The node refuses records of partitions that move to it.
const EMPTIES: u8 = 1;

/// The node counts the bytes that it stores.
const COUNTS: u8 = 2;

/// The checks that are turned on. All checks are bits of one number, so that a write on a node
/// without checks loads one atomic.
#[derive(Debug, Default)]
pub struct BeforeWrites(AtomicU8);

impl BeforeWrites {
    /// True if any check is on.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.get() != 0
    }

    /// True if the node counts stored bytes, because there are quotas.
    pub fn count(&self) -> bool {
        self.get() & COUNTS != 0
    }

    /// Turns the counting of stored bytes on or off.
    pub fn set_count(&self, whether: bool) {
        self.set(COUNTS, whether);
    }

    /// True if the node refuses records of partitions that move to it.
    pub(crate) fn empty(&self) -> bool {
        self.get() & EMPTIES != 0
    }

    pub(crate) fn set_empty(&self, whether: bool) {
        self.set(EMPTIES, whether);
    }

    #[inline]
    fn get(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    fn set(&self, what: u8, whether: bool) {
        match whether {
            true => self.0.fetch_or(what, Ordering::SeqCst),
            false => self.0.fetch_and(!what, Ordering::SeqCst),
        };
    }
}
