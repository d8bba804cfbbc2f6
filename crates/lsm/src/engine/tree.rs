//! A tree: an active memtable, rotated memtables that wait for their flush, and levels of tables.
//! The state is one immutable value that is replaced as a whole, so a reader that loads it once has
//! a consistent view of the tree.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

use super::internal_key::hash_of;
use crate::compaction::{MAX_LEVELS, TableShape};
use crate::memtable::Memtable;
use crate::table::Table;

/// Tables by level: level 0 newest first, deeper levels by key.
pub(super) type Levels = Vec<Vec<Arc<Table>>>;

/// The state of a tree at one moment.
#[derive(Clone)]
pub(super) struct TreeState {
    pub(super) active: Arc<Memtable>,
    /// Rotated memtables, newest first.
    pub(super) immutables: Vec<Arc<Memtable>>,
    pub(super) levels: Arc<Levels>,
}

impl TreeState {
    /// All memtables, newest first.
    pub(super) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.immutables)
    }

    /// Returns true if any memtable holds a record of the internal key.
    pub(super) fn in_memtables(&self, key: &[u8]) -> bool {
        let hash = hash_of(&key[1..]);
        self.memtables().any(|memtable| memtable.get(key, hash).is_some())
    }

    /// Estimates the number of user keys that have a value. The estimate assumes that each deleted
    /// record in a table hides one value in an older table. A key that was written and deleted
    /// between two flushes hides none, so at most the values in older tables are subtracted.
    pub(super) fn keys(&self) -> u64 {
        let (level0, deeper) = self.levels.split_first().expect("a tree has levels");
        // Tables whose keys differ, the oldest first.
        let deeper = deeper.iter().rev().map(|level| &level[..]);
        let runs = deeper.chain(level0.chunks(1).rev());
        let in_tables = runs.fold(0_u64, |older, run| {
            let metas = || run.iter().map(|table| table.meta());
            let deleted: u64 = metas().map(|meta| meta.deleted.records).sum();
            older.saturating_sub(deleted) + metas().map(|meta| meta.values).sum::<u64>()
        });
        let in_memtables: i64 = self.memtables().map(|memtable| memtable.live()).sum();
        in_tables.saturating_add_signed(in_memtables)
    }
}

/// A tree with a replaceable state.
pub(super) struct Tree {
    state: ArcSwap<TreeState>,
    /// Serializes replacements of the state.
    replacing: Mutex<()>,
}

impl Tree {
    pub(super) fn new(active: Arc<Memtable>, levels: Levels) -> Self {
        let state = TreeState { active, immutables: Vec::new(), levels: Arc::new(levels) };
        Self { state: ArcSwap::from_pointee(state), replacing: Mutex::new(()) }
    }

    /// The current state, without incrementing its reference count: for short reads.
    pub(super) fn load(&self) -> arc_swap::Guard<Arc<TreeState>> {
        self.state.load()
    }

    /// The current state.
    pub(super) fn load_full(&self) -> Arc<TreeState> {
        self.state.load_full()
    }

    /// Replaces the state by a copy that `change` has modified.
    pub(super) fn replace(&self, change: impl FnOnce(&mut TreeState)) {
        let _replacing = self.replacing.lock();
        let mut state = TreeState::clone(&self.state.load());
        change(&mut state);
        self.state.store(Arc::new(state));
    }

    /// Replaces the tables `ids` by `tables` in level `to`.
    pub(super) fn swap_tables(&self, ids: &[u64], tables: Vec<Arc<Table>>, to: usize) {
        self.replace(|state| {
            let levels = Arc::make_mut(&mut state.levels);
            for level in levels.iter_mut() {
                level.retain(|table| !ids.contains(&table.meta().id));
            }
            levels[to].extend(tables);
            levels[to].sort_by(|a, b| a.meta().smallest.cmp(&b.meta().smallest));
            assert!(is_disjoint(&levels[to]), "tables of a level below 0 do not overlap");
        });
    }
}

fn is_disjoint(level: &[Arc<Table>]) -> bool {
    level.windows(2).all(|pair| pair[0].meta().largest < pair[1].meta().smallest)
}

/// Returns levels without any tables.
pub(super) fn empty_levels() -> Levels {
    vec![Vec::new(); MAX_LEVELS]
}

/// The tables whose key range includes `key`: any number of level 0, and at most one of each deeper
/// level, because the tables of a deeper level do not overlap.
pub(super) fn tables_covering<'a>(
    levels: &'a Levels,
    key: &'a [u8],
) -> impl Iterator<Item = &'a Arc<Table>> {
    let (level0, below) = levels.split_first().expect("level 0 is always there");
    let below = below.iter().filter_map(move |level| {
        let at = level.partition_point(|table| &table.meta().largest[..] < key);
        level.get(at)
    });
    level0.iter().chain(below).filter(move |table| {
        let meta = table.meta();
        &meta.smallest[..] <= key && key <= &meta.largest[..]
    })
}

/// The shapes of all levels, for choosing a compaction. `purgeable` estimates the purgeable records
/// of a table.
pub(super) fn shapes(
    levels: &Levels,
    purgeable: impl Fn(&Table) -> u64,
) -> Vec<Vec<TableShape<'_>>> {
    assert_eq!(levels.len(), MAX_LEVELS);
    let shape = |table| shape(table, purgeable(table));
    levels.iter().map(|level| level.iter().map(shape).collect()).collect()
}

fn shape(table: &Arc<Table>, purgeable: u64) -> TableShape<'_> {
    let meta = table.meta();
    TableShape {
        id: meta.id,
        bytes: meta.bytes,
        smallest: &meta.smallest,
        largest: &meta.largest,
        entries: meta.entries,
        purgeable,
    }
}

/// Locks a mutex that has no poisoning. A panic of a thread that has locked the mutex must leave no
/// partial changes.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
