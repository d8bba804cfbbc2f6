//! Whose turn it is: of all conditional writes of a key that this node coordinates, on whichever
//! loop, one is under way at a time. They would only outbid each other.
//!
//! Keys are told apart by one of 65,536 buckets; those that share one wait for each other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use xxhash_rust::xxh3::xxh3_64;

const BUCKETS: usize = 1 << 16;

/// What a bucket may be.
const TAKEN: u8 = 1;
const WANTED: u8 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Not allocated before the first conditional write.
    buckets: OnceLock<Box<[AtomicU8]>>,
}

/// The turn in one bucket. Must be handed to [`Turns::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(usize);

impl Turns {
    /// The turn that a key's writes wait for.
    pub(crate) fn of(key: &[u8]) -> Turn {
        Turn(xxh3_64(key) as usize % BUCKETS)
    }

    /// Takes it; returns `false` if it is taken, and notes that it is wanted.
    pub(crate) fn take(&self, Turn(place): Turn) -> bool {
        let bucket = &self.buckets()[place];
        let free = bucket.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == 0;
        if !free {
            bucket.fetch_or(WANTED, Ordering::Relaxed);
        }
        free
    }

    /// Whether somebody else wants it since it was taken.
    pub(crate) fn is_wanted(&self, Turn(place): Turn) -> bool {
        self.buckets()[place].load(Ordering::Relaxed) & WANTED != 0
    }

    /// The next one may take it.
    pub(crate) fn end(&self, Turn(place): Turn) {
        self.buckets()[place].store(0, Ordering::Release);
    }

    fn buckets(&self) -> &[AtomicU8] {
        self.buckets.get_or_init(|| (0..BUCKETS).map(|_| AtomicU8::default()).collect())
    }
}
