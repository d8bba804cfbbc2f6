//! Removal of records that a wrong clock wrote, from a stopped node's directory.
//!
//! ```text
//!  count the records ahead ─▶ mark the node as rebuilding ─▶ remove the records
//!    ─▶ lower the clock's bound (`clock.rs`)
//! ```
//!
//! **Other nodes.** Nodes with correct clocks refused the records ahead, so they do not have them.
//! Nodes whose clocks were ahead as well may have them. Once all nodes with these records are
//! repaired, the records are lost for good; the command states this before it removes any record.
//!
//! **Hidden records.** Each removed record hid an older record of its key, which this node may have
//! acknowledged, and which a compaction may have dropped since. If a dropped record was a
//! tombstone, a value that it deleted may reappear. Once a repair round has proven the tombstone,
//! the other nodes may have purged it, so they cannot correct such a value. Hidden records with
//! proven times are therefore removed too, and the other nodes stream back those that still exist.
//!
//! **Afterwards.** From its next start on, the node is not authoritative for the records that it
//! lacks, until the other nodes have streamed them back. Each removed hint marks its target and
//! partition as missing writes. The bound is lowered last: as long as it is ahead, a start is
//! refused, and the repair can be repeated.

use std::collections::BTreeSet;

use lsm::{Batch, Engine, RemovalFilter, Space, Version};

use crate::start_error::StartError;
use crate::store::Store;
use crate::{clock, hints, identity};

/// The spaces with records that carry a version from the clock.
const VERSIONED: &[Space] = &[Space::Data, Space::Hints];

/// The records with a timestamp above a limit.
#[derive(Debug)]
pub struct Ahead {
    /// Number of the users' records.
    pub records: u64,
    /// Number of hints.
    pub hints: u64,
    /// Latest write time of the records and hints; 0 = there are none.
    pub furthest: u64,
    /// The bound at which the node's clock would begin.
    pub bound: u64,
    limit: u64,
    /// Keys of the missed-write marks for the partitions of the hints.
    marks: BTreeSet<Vec<u8>>,
}

impl Ahead {
    /// Finds the records and hints with a timestamp above `limit`. `None` = the node is alone: no
    /// peer refuses its writes, and no peer could restore lost records.
    pub fn find(engine: &Engine, limit: u64) -> Result<Option<Self>, StartError> {
        if identity::is_alone(engine)? {
            return Ok(None);
        }
        let bound = clock::stored_bound(engine)?;
        let marks = BTreeSet::new();
        let mut found = Self { records: 0, hints: 0, furthest: 0, bound, limit, marks };
        let above = RemovalFilter { time: limit, spaces: VERSIONED, proven: 0 };
        let outcome = engine.records_above(above, |space, key, when| {
            found.furthest = found.furthest.max(when);
            if space == Space::Hints {
                found.hints += 1;
                found.marks.extend(hints::mark_of(key));
            } else {
                found.records += 1;
            }
        });
        outcome.map_err(start_error)?;
        Ok(Some(found))
    }

    /// Returns true if there are records or hints to remove, or the bound is above the limit.
    pub fn is_any(&self) -> bool {
        self.furthest > 0 || self.bound > self.limit
    }

    /// Removes the records and hints from the store, and lowers the clock's bound.
    pub fn remove(self, engine: &Engine) -> Result<(), StartError> {
        if self.records > 0 {
            identity::mark_records_lost(engine, self.limit)?;
        }
        let mut batch = Batch::new();
        for mark in &self.marks {
            let version = Version { time: self.limit, origin: 0 };
            batch.put(Space::Node, mark, version, &[]).map_err(start_error)?;
        }
        Store::commit(engine, batch).map_err(start_error)?;
        let proven = identity::read_proven_time(engine)?;
        let above = RemovalFilter { time: self.limit, spaces: VERSIONED, proven };
        engine.remove_above(above).map_err(start_error)?;
        // All remaining versions of this node are at or below the limit.
        clock::lower_bound(engine, self.bound.min(self.limit))
    }
}

fn start_error(source: lsm::Error) -> StartError {
    StartError::Store { what: "the clock's repair", source }
}

#[cfg(test)]
mod tests;
