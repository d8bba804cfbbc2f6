//! The trees of a store, and reads of current records from the trees. No read waits for a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::damaged_tables::DamagedTables;
use super::internal_key::{InternalKey, hash_of, tree_of};
use super::lookup::{
    HeadLookup, Lookup, NewerVersion, Newest, NewestHead, SearchOutcome, head_lookup_of,
    keep_newest_head, search,
};
use super::snapshot::Snapshot;
use super::tree::{Levels, Tree, TreeState, tables_covering};
use crate::batch::Space;
use crate::error::Error;
use crate::memtable::Memtable;
use crate::table::{ReadMode, Table, TableGet, file_name};
use record::{Record, RecordRef, Version};

/// The trees of a store.
pub(super) struct Trees {
    trees: Vec<Tree>,
    /// Highest visible sequence.
    visible: AtomicU64,
    damaged: Arc<DamagedTables>,
}

impl Trees {
    /// Creates the trees of a store; their number must be a power of two.
    pub(super) fn new(trees: Vec<Tree>) -> Self {
        Self { trees, visible: AtomicU64::new(0), damaged: Arc::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.trees.len()
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Tree> {
        self.trees.iter()
    }

    pub(super) fn tree(&self, index: usize) -> &Tree {
        &self.trees[index]
    }

    /// Index of the tree for a key with this hash.
    pub(super) fn index_of(&self, hash: u64) -> usize {
        tree_of(self.trees.len(), hash)
    }

    /// Sequence of the last visible group.
    pub(super) fn sequence(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes all groups up to this sequence visible.
    #[inline]
    pub(super) fn make_visible(&self, sequence: u64) {
        self.visible.store(sequence, Ordering::Release);
    }

    /// The tables in which reads and compactions found damage.
    pub(super) fn damaged_tables(&self) -> &DamagedTables {
        &self.damaged
    }

    /// Number of damaged tables.
    pub(super) fn count_damaged(&self) -> u64 {
        self.damaged.count(&self.trees)
    }

    /// Looks up the newest record of a key: [`Engine::get`](super::Engine::get).
    pub(super) fn get(&self, space: Space, key: &[u8], mode: ReadMode) -> Result<Lookup, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let state = self.trees[self.index_of(hash)].load();
        let mut newest = Newest::default();
        let searched = search(&state, internal.bytes(), hash, mode, &mut newest)?;
        match searched {
            SearchOutcome::Complete => {}
            SearchOutcome::WouldBlock => return Ok(Lookup::WouldBlock),
            SearchOutcome::TooLong(bytes) => return Ok(Lookup::TooLong(bytes)),
        }
        let Some(record) = newest.record else { return Ok(Lookup::Absent) };
        record.view().verify(key).map_err(|bad| damage_error(&state, internal.bytes(), bad.0))?;
        Ok(Lookup::Found(record))
    }

    /// Reads the newest record of a key: [`Engine::read`](super::Engine::read).
    pub(super) fn read(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        match self.get(space, key, ReadMode::Blocking)? {
            Lookup::Found(record) => Ok(Some(record)),
            Lookup::Absent => Ok(None),
            Lookup::WouldBlock | Lookup::TooLong(_) => {
                unreachable!("a read that may wait does not block, nor is anything too long for it")
            }
        }
    }

    /// Looks up a record without its value: [`Engine::lookup_head`](super::Engine::lookup_head).
    pub(super) fn lookup_head(&self, space: Space, key: &[u8]) -> Result<HeadLookup, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let state = self.trees[self.index_of(hash)].load();
        let mut newest: NewestHead = None;
        for memtable in state.memtables() {
            if let Some(found) = memtable.get(internal.bytes(), hash)
                && !keep_newest_head(&mut newest, &found)
            {
                return Ok(head_lookup_of(newest));
            }
        }
        for table in tables_covering(&state.levels, internal.bytes()) {
            match table.get(internal.bytes(), hash, ReadMode::NonBlocking)? {
                TableGet::Absent => {}
                TableGet::WouldBlock | TableGet::TooLong(_) => return Ok(HeadLookup::WouldBlock),
                TableGet::Found(raw) => {
                    let record = RecordRef::parse(&raw)
                        .map_err(|bad| Error::corrupt(&file_name(table.meta().id), 0, bad.0))?;
                    if !keep_newest_head(&mut newest, &record) {
                        break;
                    }
                }
            }
        }
        Ok(head_lookup_of(newest))
    }

    /// Looks up a newer version: [`Engine::holds_newer`](super::Engine::holds_newer).
    pub(super) fn holds_newer(
        &self,
        space: Space,
        key: &[u8],
        version: Version,
    ) -> Result<NewerVersion, Error> {
        let hash = hash_of(key);
        let internal = InternalKey::new(space, key);
        let key = internal.bytes();
        let state = self.trees[self.index_of(hash)].load();
        let mut newest = version;
        for memtable in state.memtables() {
            let held = memtable.get(key, hash).map_or(version, |record| record.version());
            newest = newest.max(held);
        }
        for table in state.levels.iter().flatten() {
            let meta = table.meta();
            if meta.max_version <= newest || key < &meta.smallest[..] || key > &meta.largest[..] {
                continue;
            }
            match table.get(key, hash, ReadMode::NonBlocking)? {
                TableGet::Absent => {}
                TableGet::WouldBlock | TableGet::TooLong(_) => return Ok(NewerVersion::WouldBlock),
                TableGet::Found(raw) => {
                    let held = RecordRef::parse(&raw).map_or(version, |record| record.version());
                    newest = newest.max(held);
                }
            }
        }
        Ok(if newest > version { NewerVersion::Held(newest) } else { NewerVersion::No })
    }

    /// Takes a point-in-time view of all trees: [`Engine::snapshot`](super::Engine::snapshot).
    pub(super) fn snapshot(&self) -> Snapshot {
        loop {
            let before: Vec<_> = self.trees.iter().map(|tree| tree.load_full()).collect();
            let sequence = self.sequence();
            // Tables carry no sequences. If no tree's state was replaced meanwhile, all records of
            // these tables and rotated memtables were visible at `sequence`.
            let same = |(tree, state): (&Tree, &Arc<TreeState>)| Arc::ptr_eq(&tree.load(), state);
            if self.trees.iter().zip(&before).all(same) {
                let damaged = Arc::clone(&self.damaged);
                return Snapshot { trees: before, sequence, damaged };
            }
        }
    }

    /// The first sequence that the log must keep once the memtable `flushed` has become a table.
    pub(super) fn floor_without(&self, flushed: Option<&Arc<Memtable>>) -> u64 {
        // `next` is read before the memtables: a batch that is applied while they are read has a
        // sequence of `next` or greater.
        let next = self.sequence() + 1;
        let states: Vec<_> = self.trees.iter().map(|tree| tree.load_full()).collect();
        let memtables = states.iter().flat_map(|state| state.memtables());
        let waiting =
            memtables.filter(|memtable| !flushed.is_some_and(|f| Arc::ptr_eq(memtable, f)));
        let firsts = waiting.filter_map(|memtable| memtable.sequences()).map(|(first, _)| first);
        firsts.min().unwrap_or(next).min(next)
    }

    /// Bytes of all tables.
    pub(super) fn table_bytes(&self) -> u64 {
        let bytes = |levels: &Levels| levels.iter().flatten().map(|t| t.meta().bytes).sum::<u64>();
        self.trees.iter().map(|tree| bytes(&tree.load().levels)).sum()
    }
}

/// The error for a record that does not match its checksum, with the first table whose key range
/// includes the key.
fn damage_error(state: &TreeState, key: &[u8], what: &str) -> Error {
    let holds = |table: &&Arc<Table>| {
        let meta = table.meta();
        &meta.smallest[..] <= key && key <= &meta.largest[..]
    };
    let table = state.levels.iter().flatten().find(holds);
    let place = table.map_or_else(|| "memtable".to_owned(), |table| file_name(table.meta().id));
    Error::corrupt(&place, 0, format!("a record of a {}-byte key: {what}", key.len() - 1))
}
