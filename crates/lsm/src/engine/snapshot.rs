//! Snapshots, and scans of snapshots.

use std::sync::Arc;

use super::damaged_tables::DamagedTables;
use super::internal_key::InternalKey;
use super::tree::TreeState;
use crate::batch::Space;
use crate::error::Error;
use crate::memtable::MemtableIter;
use crate::merge::{LevelIter, Merge, Source};
use crate::table::{Access, Table, TableIter};
use record::RecordRef;

/// A point-in-time view of a store. A snapshot pins memtables and tables, so it should be
/// short-lived.
pub struct Snapshot {
    pub(super) trees: Vec<Arc<TreeState>>,
    pub(super) sequence: u64,
    pub(super) damaged: Arc<DamagedTables>,
}

impl Snapshot {
    /// Scans the keys of `space` in `start..end` (`None` = to the last) in order, each with its
    /// newest record, tombstones included.
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        self.scan_since(space, start, end, 0)
    }

    /// Scans like [`Snapshot::scan`], but skips tables in which all records were written before
    /// `since` ([`RecordRef::write_time`]). If the newest record of a key was written before
    /// `since`, the scan may return another record of the key, or skip the key. The cost is
    /// proportional to the size of the memtables and of the tables that are not skipped.
    pub fn scan_since(&self, space: Space, start: &[u8], end: Option<&[u8]>, since: u64) -> Scan {
        let mut sources = Vec::new();
        for tree in &self.trees {
            add_sources(tree, self.sequence, since, Access::Cached, &mut sources);
        }
        let end = match end {
            Some(end) => InternalKey::start_of(space, end),
            None => vec![space as u8 + 1],
        };
        let start = InternalKey::start_of(space, start);
        let damaged = Arc::clone(&self.damaged);
        Scan { merge: Merge::new(sources), start: Some(start), end, damaged }
    }
}

/// Adds a tree's sources for a merge: its memtables, and its tables with records written at or
/// after `since`.
fn add_sources(
    state: &TreeState,
    sequence: u64,
    since: u64,
    access: Access,
    sources: &mut Vec<Source>,
) {
    let is_new = |table: &&Arc<Table>| table.meta().max_write_time >= since;
    for memtable in state.memtables() {
        if memtable.sequences().is_some() {
            let iter = MemtableIter::new(Arc::clone(memtable), sequence);
            sources.push(Source::Memtable(iter));
        }
    }
    let (level0, below) = state.levels.split_first().expect("level 0 is always there");
    for table in level0.iter().filter(is_new) {
        sources.push(Source::Table(TableIter::new(Arc::clone(table), access)));
    }
    for level in below {
        let tables: Vec<_> = level.iter().filter(is_new).cloned().collect();
        if !tables.is_empty() {
            sources.push(Source::Level(LevelIter::new(tables, access)));
        }
    }
}

/// A scan of a snapshot. Each item borrows from the scan.
pub struct Scan {
    merge: Merge,
    /// The start key, until the first call of [`Scan::next`].
    start: Option<Vec<u8>>,
    /// End of the range as an internal key, exclusive.
    end: Vec<u8>,
    damaged: Arc<DamagedTables>,
}

impl Scan {
    /// Returns the next key with its record, and verifies the record's checksum; `None` = the end
    /// of the range. May block on disk reads.
    #[allow(clippy::should_implement_trait, reason = "an item borrows from the scan")]
    pub fn next(&mut self) -> Result<Option<(&[u8], RecordRef<'_>)>, Error> {
        let moved = match self.start.take() {
            Some(start) => self.merge.seek(&start),
            None if self.merge.valid() => self.merge.next(),
            None => return Ok(None),
        };
        moved.inspect_err(|error| self.damaged.note_read(error))?;
        if !self.merge.valid() || self.merge.key() >= &self.end[..] {
            return Ok(None);
        }
        let (key, record) = (&self.merge.key()[1..], self.merge.record());
        record.verify(key).map_err(|bad| {
            Error::corrupt("scan", 0, format!("a record of a {}-byte key: {}", key.len(), bad.0))
        })?;
        Ok(Some((key, record)))
    }

    /// Numbers of copies of the records that the last returned record has hidden in this store; 0 =
    /// the cluster's default. Yields at most the default and the greatest other number, and no
    /// number that the record's own number covers.
    pub fn hidden_copies(&self) -> impl Iterator<Item = u8> + use<> {
        self.merge.hidden_copies().copies()
    }
}
