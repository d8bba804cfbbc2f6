//! Takes what a wrong clock wrote out of a stopped node's directory.
//!
//! ```text
//!  what is ahead is counted ─▶ to be streamed back: noted ─▶ records removed ─▶ bound lowered
//! ```
//!
//! The other nodes refused those records, so nobody misses them. But each hid an older one of its
//! key, which a compaction may have dropped since, and which this node may have acknowledged. If
//! that was a tombstone, what it deleted may hold again, and once it was proven no other node knows
//! of it any more: so what is proven and was hidden goes too, and comes back from the others. And
//! from its next start on the node is not authoritative for what it lacks, until the others have
//! streamed back what belongs to its replicas; and for each hint that is removed its partition is
//! marked. The bound goes last: until then a start is refused, and the repair can be repeated.

use std::collections::BTreeSet;

use lsm::{Above, Batch, Engine, Space, Version};

use crate::start_error::StartError;
use crate::store::Store;
use crate::{clock, hints, identity};

/// Where what a wrong clock wrote is kept.
const VERSIONED: &[Space] = &[Space::Data, Space::Hints];

/// What has a timestamp above a limit.
#[derive(Debug)]
pub struct Ahead {
    /// How many records of the users.
    pub records: u64,
    /// How many hints.
    pub hints: u64,
    /// When the youngest of them was written, as the time of a version; 0 = there are none.
    pub furthest: u64,
    /// The bound that the node's clock would begin at.
    pub bound: u64,
    limit: u64,
    /// Marks for the partitions of the hints.
    marks: BTreeSet<Vec<u8>>,
}

impl Ahead {
    /// Looks for what has a timestamp above `limit`. `None` = the node is alone: nobody refuses
    /// what it writes, and nobody could give back what would be lost.
    pub fn look(engine: &Engine, limit: u64) -> Result<Option<Self>, StartError> {
        if identity::is_alone(engine)? {
            return Ok(None);
        }
        let bound = clock::kept_bound(engine)?;
        let marks = BTreeSet::new();
        let mut found = Self { records: 0, hints: 0, furthest: 0, bound, limit, marks };
        let above = Above { time: limit, spaces: VERSIONED, proven: 0 };
        let looked = engine.records_above(above, |space, key, when| {
            found.furthest = found.furthest.max(when);
            if space == Space::Hints {
                found.hints += 1;
                found.marks.extend(hints::mark_of(key));
            } else {
                found.records += 1;
            }
        });
        looked.map_err(failed)?;
        Ok(Some(found))
    }

    /// Whether there is anything to repair.
    pub fn is_any(&self) -> bool {
        self.furthest > 0 || self.bound > self.limit
    }

    /// Removes from the store all that was found.
    pub fn remove(self, engine: &Engine) -> Result<(), StartError> {
        if self.records > 0 {
            identity::lose(engine, self.limit)?;
        }
        let mut batch = Batch::new();
        for mark in &self.marks {
            let version = Version { time: self.limit, origin: 0 };
            batch.put(Space::Node, mark, version, &[]).map_err(failed)?;
        }
        Store::commit(engine, batch).map_err(failed)?;
        let proven = identity::proven_elsewhere(engine)?;
        let above = Above { time: self.limit, spaces: VERSIONED, proven };
        engine.remove_above(above).map_err(failed)?;
        // What is left of this node's own versions is not above that.
        clock::lower_bound(engine, self.bound.min(self.limit))
    }
}

fn failed(source: lsm::Error) -> StartError {
    StartError::Store { what: "the clock's repair", source }
}

#[cfg(test)]
mod tests;
