//! What one step of a compaction drops of leftovers ([`crate::leftovers`]).
//!
//! A record goes once nothing of its key lies elsewhere, as what is purged does, lest what it hides
//! comes to light. But here that is looked up, not told by the ranges of tables alone: what is
//! written meanwhile comes into tables that lie over everything, and would keep all that is below.
//!
//! **A plain record goes only if neither it is placed here nor anything that it has hidden**, which
//! was for more copies ([`Reach`]): what was acknowledged with the help of that would be missing
//! here, and count as never written. It stays in its place, as where a repair round brings it to
//! who holds what it hides. What a conditional write made goes by its own copies: it may be one
//! that no majority has, and here nobody completes it.

use std::sync::Arc;

use super::tree::tables_over;
use super::{Engine, hash_of};
use crate::batch::Space;
use crate::error::Error;
use crate::leftovers::Dropping;
use crate::local::Reach;
use crate::table::{Table, TableGet, Wait};
use record::RecordRef;

/// Keys of a step that are asked about once more before it replaces its tables. Some are enough to
/// meet, some time, an owner that does not keep its contract; all could fill the memory.
const ASKED_AGAIN: usize = 64;

/// What a step does about leftovers.
pub(super) struct StepLeftovers<'a> {
    dropping: Option<Dropping<'a>>,
    /// Keys that it dropped, and for how many copies that was.
    dropped: Vec<(Vec<u8>, Copies)>,
}

/// For how many copies a record is, and what goes with it is.
#[derive(Clone, Copy)]
struct Copies(u8, Reach);

impl Copies {
    fn are_placed(self, dropping: &Dropping<'_>, key: &[u8]) -> bool {
        let Self(own, reach) = self;
        dropping.is_placed(key, own) || reach.copies().any(|more| dropping.is_placed(key, more))
    }
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
        (record, reach): (RecordRef<'_>, Reach),
    ) -> Result<bool, Error> {
        let Some(dropping) = &self.dropping else { return Ok(false) };
        let reach = if record.ballot() == 0 { reach } else { Reach::default() };
        let (key, copies) = (&ikey[1..], Copies(record.copies(), reach));
        if ikey[0] != Space::Data as u8 || copies.are_placed(dropping, key) {
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
            let is_placed = copies.are_placed(dropping, key);
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
