//! The tables in which reads and compactions found damage. Damage must be visible even if replicas
//! answer in this node's place: it is logged once per table, and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::tree::{Tree, lock};
use crate::error::Error;
use crate::table::{SUFFIX, Table, file_name};

/// The damaged tables of a store, since its start.
#[derive(Default)]
pub(super) struct DamagedTables {
    by_file: Mutex<BTreeMap<String, TableDamage>>,
}

/// Damage of one table.
struct TableDamage {
    /// The first error.
    error: Error,
    /// True if compactions skip the table, because one of them found the damage. A read may have
    /// failed for another reason than damage on the disk, so it does not stop compactions.
    is_skipped: bool,
}

impl DamagedTables {
    /// Notes a failed read of a client, a peer or a scan. An error other than damage of a table is
    /// ignored.
    #[cold]
    pub(super) fn note_read(&self, error: &Error) {
        self.note(error, false);
    }

    /// Notes a failed read of a compaction. From now on compactions skip the table, until it is
    /// replaced ([`Discard`](super::discard::Discard)).
    pub(super) fn note_compaction(&self, error: &Error) {
        self.note(error, true);
    }

    fn note(&self, error: &Error, is_skipped: bool) {
        let Error::Corrupt { file, .. } = error else { return };
        if !file.ends_with(SUFFIX) {
            return;
        }
        let mut by_file = lock(&self.by_file);
        let is_known = by_file.contains_key(file);
        let new = || TableDamage { error: error.clone(), is_skipped: false };
        by_file.entry(file.clone()).or_insert_with(new).is_skipped |= is_skipped;
        drop(by_file);
        if !is_known {
            tracing::error!(
                %error,
                "a table is damaged; a full repair round heals it. Until then this node can't read \
                 the damaged keys, and compactions that find the damage skip the table"
            );
        }
    }

    /// Declares a damaged table replaced.
    pub(super) fn forget(&self, table: u64) {
        lock(&self.by_file).remove(&file_name(table));
    }

    /// Returns true if compactions skip one of the tables.
    pub(super) fn skips_any(&self, mut tables: impl Iterator<Item = u64>) -> bool {
        let by_file = lock(&self.by_file);
        let is_skipped = |id| by_file.get(&file_name(id)).is_some_and(|damage| damage.is_skipped);
        !by_file.is_empty() && tables.any(is_skipped)
    }

    /// Returns the error of a table that compactions skip, if there is one.
    pub(super) fn skipped_error(&self) -> Option<Error> {
        let by_file = lock(&self.by_file);
        by_file.values().find(|damage| damage.is_skipped).map(|damage| damage.error.clone())
    }

    /// Counts the damaged ones among the tables of these trees. Compactions may have replaced other
    /// damaged tables.
    pub(super) fn count(&self, trees: &[Tree]) -> u64 {
        let by_file = lock(&self.by_file);
        if by_file.is_empty() {
            return 0;
        }
        let is_damaged = |table: &&Arc<Table>| by_file.contains_key(&file_name(table.meta().id));
        let in_tree = |tree: &Tree| tree.load().levels.iter().flatten().filter(is_damaged).count();
        trees.iter().map(in_tree).sum::<usize>() as u64
    }
}
