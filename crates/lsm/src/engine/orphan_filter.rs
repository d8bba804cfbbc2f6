//! The orphaned records ([`crate::orphans`]) that one compaction step drops.
//!
//! As in purging, a record is dropped only if no other record of its key exists elsewhere in the
//! store. Otherwise, older records that the dropped record hides could become visible. The step
//! looks the key up in the other tables. A comparison of key ranges would be too coarse: tables of
//! new writes overlap nearly all keys, so no record below such a table could ever be dropped.
//!
//! **A plain record is dropped only if neither the record itself nor any record that it has hidden
//! is placed here.** A hidden record may have had more copies ([`HiddenCopies`]), and this node may
//! have counted towards the acknowledgment of its write. A node without any record of the key would
//! seem never to have stored that write. The plain record therefore stays as a substitute for the
//! hidden record. For the same reason, a repair round copies the plain record to each node with a
//! record that the plain one hides. A record of a conditional write is not a substitute, so only
//! its own copies count: a majority may not have stored it, and this node, which is not one of its
//! replicas, does not complete the write.

use std::sync::Arc;

use super::compactor::Compactor;
use super::core::Core;
use super::internal_key::hash_of;
use super::tree::tables_covering;
use crate::batch::Space;
use crate::error::Error;
use crate::local_bytes::HiddenCopies;
use crate::orphans::DropStep;
use crate::table::{ReadMode, Table, TableGet};
use record::RecordRef;

/// Number of dropped keys whose placement is checked again before the step replaces its tables. A
/// sample suffices to detect an owner that violates its contract. A list of all keys could exhaust
/// the memory.
const MAX_CHECKED_AGAIN: usize = 64;

/// State of a compaction step that may drop orphaned records.
pub(super) struct OrphanFilter<'a> {
    core: &'a Core,
    compactor: &'a Compactor,
    dropping: Option<DropStep<'a>>,
    /// Sample of the dropped keys, with their copies.
    dropped: Vec<(Vec<u8>, RecordCopies)>,
}

/// Number of copies of a record, and those of the records that it has hidden.
#[derive(Clone, Copy)]
struct RecordCopies(u8, HiddenCopies);

impl RecordCopies {
    fn is_any_placed(self, dropping: &DropStep<'_>, key: &[u8]) -> bool {
        let Self(own, hidden) = self;
        dropping.is_placed(key, own) || hidden.copies().any(|more| dropping.is_placed(key, more))
    }
}

impl<'a> OrphanFilter<'a> {
    /// Starts a step.
    pub(super) fn begin(core: &'a Core, compactor: &'a Compactor) -> Self {
        let dropping = core.options.purge.orphans().step();
        Self { core, compactor, dropping, dropped: Vec::new() }
    }

    /// Returns true if the step drops the record. `inputs`: sorted ids of the merged tables.
    pub(super) fn should_drop(
        &mut self,
        (tree, inputs): (usize, &[u64]),
        ikey: &[u8],
        (record, hidden): (RecordRef<'_>, HiddenCopies),
    ) -> Result<bool, Error> {
        let Some(dropping) = &self.dropping else { return Ok(false) };
        let hidden = if record.ballot() == 0 { hidden } else { HiddenCopies::default() };
        let (key, copies) = (&ikey[1..], RecordCopies(record.copies(), hidden));
        if ikey[0] != Space::Data as u8 || copies.is_any_placed(dropping, key) {
            return Ok(false);
        }
        if self.has_other_record(tree, inputs, ikey)? {
            return Ok(false);
        }
        if self.dropped.len() < MAX_CHECKED_AGAIN {
            self.dropped.push((key.to_vec(), copies));
        }
        Ok(true)
    }

    /// Panics if a sampled dropped key is placed here again: the owner has violated its contract.
    /// Call it just before `outputs` replace the inputs of the step.
    pub(super) fn check(&self, outputs: &[Arc<Table>]) {
        let Some(dropping) = &self.dropping else { return };
        for (key, copies) in &self.dropped {
            let key_name = key.escape_ascii();
            let is_placed = copies.is_any_placed(dropping, key);
            assert!(!is_placed, "{key_name} was placed here while what was left of it went");
        }
        // An orphaned record that survived has other records of its key elsewhere: a later merge
        // with them checks it again.
        outputs.iter().for_each(|table| table.set_orphans_checked_in(dropping.number));
    }

    /// Returns true if a memtable, or a table that is not merged, holds a record of the key.
    fn has_other_record(&self, tree: usize, inputs: &[u64], ikey: &[u8]) -> Result<bool, Error> {
        let state = self.core.trees.tree(tree).load_full();
        if state.in_memtables(ikey) {
            return Ok(true);
        }
        let hash = hash_of(&ikey[1..]);
        let is_input = |table: &Arc<Table>| inputs.binary_search(&table.meta().id).is_ok();
        for table in tables_covering(&state.levels, ikey).filter(|table| !is_input(table)) {
            let found = table
                .get(ikey, hash, ReadMode::Blocking)
                .map_err(|error| self.compactor.classify_read(self.core, error))?;
            if found != TableGet::Absent {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
