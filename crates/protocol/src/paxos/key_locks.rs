//! Key locks. A node runs at most one conditional write of a key at a time, over all its event
//! loops, because concurrent writes would outbid each other.
//!
//! A [`KeyLock`] covers a partition: keys of one partition share a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::placement::topology::{PARTITIONS, partition_of};

/// The flags of a bucket: locked, and wanted by another loop.
const TAKEN: u8 = 1;
const WANTED: u8 = 2;

/// The key locks of a node.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks {
    /// The buckets, allocated on the first conditional write.
    buckets: OnceLock<Box<[AtomicU8]>>,
}

/// The lock of one partition. Its holder must release it with [`KeyLocks::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyLock(u16);

impl KeyLocks {
    /// Returns the lock that a key's writes wait for.
    pub(crate) fn of(key: &[u8]) -> KeyLock {
        KeyLock(partition_of(key))
    }

    /// Tries to acquire the lock. Returns `false` if the lock is held, and marks it as wanted.
    pub(crate) fn take(&self, KeyLock(place): KeyLock) -> bool {
        let bucket = &self.buckets()[usize::from(place)];
        let free = bucket.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == 0;
        if !free {
            bucket.fetch_or(WANTED, Ordering::Relaxed);
        }
        free
    }

    /// True if another loop has tried to acquire the lock since it was acquired.
    pub(crate) fn is_wanted(&self, KeyLock(place): KeyLock) -> bool {
        self.buckets()[usize::from(place)].load(Ordering::Relaxed) & WANTED != 0
    }

    /// Releases the lock.
    pub(crate) fn end(&self, KeyLock(place): KeyLock) {
        let before = self.buckets()[usize::from(place)].swap(0, Ordering::Release);
        assert_eq!(before & TAKEN, TAKEN, "only a holder releases the lock");
    }

    fn buckets(&self) -> &[AtomicU8] {
        self.buckets.get_or_init(|| (0..PARTITIONS).map(|_| AtomicU8::default()).collect())
    }
}
