//! What all loops of a node share besides its clock: whether it can vouch for what it does not
//! hold, and what is known of the others.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a node's word is worth about records that it does *not* hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// An empty data directory, and not all nodes have said yet that they never met another under
    /// this name. Like an amnesiac's, its absences don't count.
    New = 0,
    /// It holds everything that it ever acknowledged.
    Member = 1,
    /// Its disk was wiped or replaced: its absences don't count until the others have streamed
    /// back what it held.
    Amnesiac = 2,
}

/// A node's standing, and since when it has its disk.
#[derive(Debug)]
pub struct Vouching {
    standing: AtomicU8,
    /// Greatest time of a stamp that a former life of this node may have acknowledged.
    born: AtomicU64,
}

impl Vouching {
    /// As it was kept on disk. `born` is a stamp's time.
    pub fn new(standing: Standing, born: u64) -> Self {
        Self { standing: AtomicU8::new(standing as u8), born: AtomicU64::new(born) }
    }

    /// The node's standing.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::New,
            1 => Standing::Member,
            _ => Standing::Amnesiac,
        }
    }

    /// Changes it.
    pub fn set(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Release);
    }

    /// Whether the node can vouch that it never acknowledged a newer record of a key than one of
    /// this `time`; `None`: than none at all. What a former life acknowledged is older than its
    /// disk, so a record that is younger hides nothing.
    pub fn sure(&self, time: Option<u64>) -> bool {
        self.standing() == Standing::Member
            || time.is_some_and(|time| time > self.born.load(Ordering::Relaxed))
    }
}
