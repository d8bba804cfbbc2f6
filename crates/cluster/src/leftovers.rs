//! Whether this node's store may hold *leftovers*, records of keys that are placed on other nodes
//! by now, that are to go.
//!
//! ```text
//!  want ─▶ wanted() ─▶ DropLeftovers (`node/leftovers.rs`) ─▶ the store has dropped them ─▶ no
//! ```
//!
//! Whoever wants it does so once the view is in force by which they are leftovers, and what was let
//! pass under an earlier one is in the store: what comes later may stay.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// How often they were wanted to go …
    wanted: AtomicU64,
    /// … and up to which of these times they are gone.
    dropped: AtomicU64,
}

impl Leftovers {
    /// From now on those are wanted to go that are in the store, by the view that is in force.
    pub fn want(&self) {
        self.wanted.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether some may not be gone that were wanted to go. Until then the node stores nothing of a
    /// key that it does not hold ([`Shared::holds`](crate::Shared::holds)), and no such key becomes
    /// one that it holds.
    pub fn wanted(&self) -> bool {
        self.dropped.load(Ordering::Acquire) < self.times()
    }

    /// How often they were wanted to go.
    pub(crate) fn times(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Those are gone that were there when they were wanted to go for so many times.
    pub(crate) fn dropped(&self, times: u64) {
        self.dropped.fetch_max(times, Ordering::AcqRel);
    }
}
