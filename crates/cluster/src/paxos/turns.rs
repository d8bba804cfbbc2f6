//! Whose turn it is: of all conditional writes of a key that this node coordinates, on whichever
//! loop, one is under way at a time. They would only outbid each other.
//!
//! Keys are told apart by their partitions; those that share one wait for each other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::placement::topology::{PARTITIONS, partition_of};

/// What a bucket may be.
const TAKEN: u8 = 1;
const WANTED: u8 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Not allocated before the first conditional write.
    buckets: OnceLock<Box<[AtomicU8]>>,
}

/// The turn in one partition. Must be handed to [`Turns::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u16);

impl Turns {
    /// The turn that a key's writes wait for.
    pub(crate) fn of(key: &[u8]) -> Turn {
        Turn(partition_of(key))
    }

    /// Takes it; returns `false` if it is taken, and notes that it is wanted.
    pub(crate) fn take(&self, Turn(place): Turn) -> bool {
        let bucket = &self.buckets()[usize::from(place)];
        let free = bucket.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == 0;
        if !free {
            bucket.fetch_or(WANTED, Ordering::Relaxed);
        }
        free
    }

    /// Whether somebody else wants it since it was taken.
    pub(crate) fn is_wanted(&self, Turn(place): Turn) -> bool {
        self.buckets()[usize::from(place)].load(Ordering::Relaxed) & WANTED != 0
    }

    /// The next one may take it.
    pub(crate) fn end(&self, Turn(place): Turn) {
        let before = self.buckets()[usize::from(place)].swap(0, Ordering::Release);
        assert_eq!(before & TAKEN, TAKEN, "only who has a turn ends it");
    }

    fn buckets(&self) -> &[AtomicU8] {
        self.buckets.get_or_init(|| (0..PARTITIONS).map(|_| AtomicU8::default()).collect())
    }
}
