//! Checks that a node makes before it stores a record. On most nodes, no check is on.

use std::sync::atomic::{AtomicU8, Ordering};

/// The node refuses records of partitions that move to it.
const REFUSES_MOVING: u8 = 1;

/// The node counts the bytes that it stores.
const COUNTS_BYTES: u8 = 2;

/// The checks that are on. All are bits of one number, so that a write on a node without checks
/// loads one atomic.
#[derive(Debug, Default)]
pub struct WriteChecks(AtomicU8);

impl WriteChecks {
    /// True if any check is on.
    #[inline]
    pub fn is_any_on(&self) -> bool {
        self.get() != 0
    }

    /// True if the node counts stored bytes. It does if there are quotas.
    pub fn counts_bytes(&self) -> bool {
        self.get() & COUNTS_BYTES != 0
    }

    /// Turns the counting of stored bytes on or off.
    pub fn set_counts_bytes(&self, whether: bool) {
        self.set(COUNTS_BYTES, whether);
    }

    /// True if the node refuses records of partitions that move to it.
    pub(crate) fn refuses_moving(&self) -> bool {
        self.get() & REFUSES_MOVING != 0
    }

    pub(crate) fn set_refuses_moving(&self, whether: bool) {
        self.set(REFUSES_MOVING, whether);
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
