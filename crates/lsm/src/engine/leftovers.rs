//! What one step of a compaction drops of leftovers ([`crate::leftovers`]).
//!
//! A record goes once nothing of its key lies elsewhere, as what is purged does, lest what it hides
//! comes to light. But here that is looked up, not told by the ranges of tables alone: what is
//! written meanwhile comes into tables that lie over everything, and would keep all that is below.

use std::sync::Arc;

use super::tree::tables_over;
use super::{Engine, hash_of};
use crate::batch::Space;
use crate::error::Error;
use crate::leftovers::Dropping;
use crate::record::RecordRef;
use crate::table::{Table, TableGet, Wait};

/// Keys of a step that are asked about once more before it replaces its tables. Some are enough to
/// meet, some time, an owner that does not keep its contract; all could fill the memory.
const ASKED_AGAIN: usize = 64;

/// What a step does about leftovers.
pub(super) struct StepLeftovers<'a> {
    dropping: Option<Dropping<'a>>,
    /// Keys that it dropped, and how many copies they were to have.
    dropped: Vec<(Vec<u8>, u8)>,
}

impl<'a> StepLeftovers<'a> {
    /// A step begins.
    pub(super) fn begin(engine: &'a Engine) -> Self {
        let dropping = engine.options.purge.leftovers().step();
        Self { dropping, dropped: Vec::new() }
    }

    /// Whether a record goes. `inputs` are the sorted ids of the tables that are merged.
    pub(super) fn goes(
        &mut self,
        engine: &Engine,
        (tree, inputs): (usize, &[u64]),
        ikey: &[u8],
        record: RecordRef<'_>,
    ) -> Result<bool, Error> {
        let Some(dropping) = &self.dropping else { return Ok(false) };
        let (key, copies) = (&ikey[1..], record.copies());
        if ikey[0] != Space::Data as u8 || dropping.is_placed(key, copies) {
            return Ok(false);
        }
        if engine.is_elsewhere(tree, inputs, ikey)? {
            return Ok(false);
        }
        if self.dropped.len() < ASKED_AGAIN {
            self.dropped.push((key.to_vec(), copies));
        }
        Ok(true)
    }

    /// The tables that the step wrote are about to replace what it read.
    pub(super) fn check(&self, outputs: &[Arc<Table>]) {
        let Some(dropping) = &self.dropping else { return };
        for (key, copies) in &self.dropped {
            let key_name = key.escape_ascii();
            let is_placed = dropping.is_placed(key, *copies);
            assert!(!is_placed, "{key_name} was placed here while what was left of it went");
        }
        // A leftover that stays will meet in a merge what there is of its key elsewhere.
        outputs.iter().for_each(|table| table.was_asked_for_leftovers(dropping.number));
    }
}

impl Engine {
    /// Whether anything of a key is in a memtable, or in a table that is not merged.
    fn is_elsewhere(&self, tree: usize, inputs: &[u64], ikey: &[u8]) -> Result<bool, Error> {
        let state = self.trees[tree].load_full();
        if Self::in_memtables(&state, ikey) {
            return Ok(true);
        }
        let hash = hash_of(&ikey[1..]);
        let is_input = |table: &Arc<Table>| inputs.binary_search(&table.meta().id).is_ok();
        for table in tables_over(&state.levels, ikey).filter(|table| !is_input(table)) {
            let found = table.get(ikey, hash, Wait::Yes).map_err(|error| self.unread(error))?;
            if found != TableGet::Absent {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
