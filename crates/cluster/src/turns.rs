//! Whose turn it is: of all conditional writes of a key that this node coordinates, on whichever
//! loop, one is under way at a time. They would only outbid each other.
//!
//! Keys are told apart by one of 65,536 buckets; those that share one wait for each other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::xxh3_64;

const BUCKETS: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Not allocated before the first conditional write.
    taken: OnceLock<Box<[AtomicBool]>>,
}

/// The turn in one bucket. Must be handed to [`Turns::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(usize);

impl Turns {
    /// The turn that a key's writes wait for.
    pub(crate) fn of(key: &[u8]) -> Turn {
        Turn(xxh3_64(key) as usize % BUCKETS)
    }

    /// Takes it; returns `false` if it is taken.
    pub(crate) fn take(&self, Turn(place): Turn) -> bool {
        !self.taken()[place].swap(true, Ordering::Acquire)
    }

    /// The next one may take it.
    pub(crate) fn end(&self, Turn(place): Turn) {
        self.taken()[place].store(false, Ordering::Release);
    }

    fn taken(&self) -> &[AtomicBool] {
        self.taken.get_or_init(|| (0..BUCKETS).map(|_| AtomicBool::default()).collect())
    }
}
