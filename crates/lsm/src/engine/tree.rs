//! One tree: a memtable that is written, rotated ones that wait for their flush, and levels of
//! tables. All of it is one immutable value, replaced as a whole, so that a reader loads it once
//! and sees a consistent tree for as long as it likes.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

use crate::compaction::{MAX_LEVELS, Shape};
use crate::memtable::Memtable;
use crate::table::Table;

/// Tables by level: level 0 newest first, the others by key.
pub(super) type Levels = Vec<Vec<Arc<Table>>>;

/// What a tree consists of at one moment.
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
}

/// A tree whose state can be replaced.
pub(super) struct Tree {
    state: ArcSwap<TreeState>,
    /// Held while a new state is made from the old one.
    replacing: Mutex<()>,
}

impl Tree {
    pub(super) fn new(active: Arc<Memtable>, levels: Levels) -> Self {
        let state = TreeState { active, immutables: Vec::new(), levels: Arc::new(levels) };
        Self { state: ArcSwap::from_pointee(state), replacing: Mutex::new(()) }
    }

    /// The state now, without counting a reference: for short reads.
    pub(super) fn load(&self) -> arc_swap::Guard<Arc<TreeState>> {
        self.state.load()
    }

    /// The state now.
    pub(super) fn load_full(&self) -> Arc<TreeState> {
        self.state.load_full()
    }

    /// Replaces the state by what `change` makes of it.
    pub(super) fn replace(&self, change: impl FnOnce(&mut TreeState)) {
        let _replacing = self.replacing.lock();
        let mut state = TreeState::clone(&self.state.load());
        change(&mut state);
        self.state.store(Arc::new(state));
    }
}

/// The tables that may hold `key`: of level 0 any, of each level below at most one, because their
/// tables are sorted and do not overlap.
pub(super) fn tables_over<'a>(
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

/// The shapes of all levels, for the choice of a compaction; `purgeable` says about how many
/// records of a table may be purged.
pub(super) fn shapes(levels: &Levels, purgeable: impl Fn(&Table) -> u64) -> Vec<Vec<Shape<'_>>> {
    assert_eq!(levels.len(), MAX_LEVELS);
    let shape = |table| shape(table, purgeable(table));
    levels.iter().map(|level| level.iter().map(shape).collect()).collect()
}

fn shape(table: &Arc<Table>, purgeable: u64) -> Shape<'_> {
    let meta = table.meta();
    Shape {
        id: meta.id,
        bytes: meta.bytes,
        smallest: &meta.smallest,
        largest: &meta.largest,
        entries: meta.entries,
        purgeable,
    }
}

/// Locks a mutex whose holders can't leave it half-changed: a panic elsewhere does not spread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
