//! The engine as a node's start and a repair use it, when each step waits for its own commit.

use std::sync::Arc;

use cluster::{Clock, REMEMBERED_MICROS};
use lsm::{Batch, Db, Engine, Error, MayPurge, Space};

/// A store that is read and written step by step.
pub trait Store {
    /// What reads it.
    fn engine(&self) -> &Engine;

    /// Writes a batch; returns when it is as durable as the sync mode says.
    fn commit(&self, batch: Batch) -> Result<(), Error>;
}

/// A store whose threads run.
impl Store for Db {
    fn engine(&self) -> &Engine {
        Self::engine(self)
    }

    fn commit(&self, batch: Batch) -> Result<(), Error> {
        Self::commit(self, batch)
    }
}

/// A store without threads: of a stopped node, or a simulated one.
impl Store for Engine {
    fn engine(&self) -> &Engine {
        self
    }

    fn commit(&self, batch: Batch) -> Result<(), Error> {
        Self::commit(self, std::iter::once(&batch)).map(drop)
    }
}

/// Age in microseconds at which a tombstone, or a value that has expired so long ago, may go from the
/// bottom of the only replica. A write
/// that is older than its key's tombstone can still be on its way into the log for as long as a
/// request may take; this is far beyond that.
const PURGE_AFTER: u64 = 600_000_000;

/// Which tombstones and expired values the engine may drop. When this node is `alone`, it decides by
/// their age. With others they stay: one of them may have missed a tombstone, or an expired value,
/// and would bring back what that hides.
pub fn may_purge(alone: bool, wall_micros: impl Fn() -> u64 + Send + Sync + 'static) -> MayPurge {
    Arc::new(move |space, _key, latest| match space {
        // Nobody else has hints: one that was delivered is gone for good.
        Space::Hints => true,
        // Nobody sends it again.
        Space::Idempotency => Clock::micros(latest) + REMEMBERED_MICROS < wall_micros(),
        _ => alone && Clock::micros(latest) + PURGE_AFTER < wall_micros(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn tombstones_go_where_nobody_else_may_lack_them() {
        let now = 1_700_000_000_000_000;
        let may =
            |alone, space, age: u64| may_purge(alone, move || now)(space, b"k", (now - age) << 12);
        assert!(may(true, Space::Data, PURGE_AFTER + 1));
        assert!(!may(true, Space::Data, PURGE_AFTER), "one that is older may be on its way");
        assert!(!may(false, Space::Data, 2 * PURGE_AFTER));
        assert!(may(false, Space::Hints, 0), "nobody else has hints");
        assert!(may(false, Space::Idempotency, REMEMBERED_MICROS + 1));
        assert!(!may(true, Space::Idempotency, REMEMBERED_MICROS), "it may come again");
    }
}
