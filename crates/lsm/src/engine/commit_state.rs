//! The state that only the commit leader accesses: the log, and the writer of each tree's active
//! memtable.

use std::sync::Arc;

use super::MAX_IMMUTABLES;
use super::core::Core;
use super::internal_key::hash_of;
use super::tree::Tree;
use crate::batch::{Operations, Space};
use crate::memtable::{InsertOutcome, Memtable, MemtableWriter};
use crate::wal::Wal;
use record::Version;

/// Upper bound of a memtable node's bytes besides its key and record: head, tower and padding.
/// `CommitState::bound` checks this value against the memtable's own bound.
const NODE_OVERHEAD: usize = 96;
/// Capacity of a memtable beyond its target in bytes, so that a group rarely forces an early
/// rotation.
const MEMTABLE_SLACK: usize = 256 * 1024;

/// The state that only the commit leader accesses.
pub(super) struct CommitState {
    /// `None` while the store is being opened.
    pub(super) wal: Option<Wal>,
    pub(super) trees: Vec<TreeWriter>,
    key: Vec<u8>,
}

/// The writer's state of one tree.
pub(super) struct TreeWriter {
    memtable: MemtableWriter,
    /// Highest version in any rotated memtable or table. A record that arrives with this version or
    /// a lower one is late, whatever its ballot.
    rotated_max: Version,
    /// Latest write time in any rotated memtable or table.
    rotated_write_time: u64,
}

impl CommitState {
    pub(super) fn new(trees: Vec<TreeWriter>) -> Self {
        Self { wal: None, trees, key: Vec::new() }
    }

    /// Upper bound of the memtable bytes for a payload of this length and number of operations.
    pub(super) fn bound(payload_len: usize, operations: usize) -> usize {
        debug_assert!(MemtableWriter::bound(0, 0) <= NODE_OVERHEAD);
        payload_len + operations * NODE_OVERHEAD
    }

    /// Upper bound of the memtable bytes for a payload read from the log.
    pub(super) fn bound_of(payload: &[u8]) -> usize {
        Self::bound(payload.len(), Operations::new(payload).count())
    }

    /// Inserts a payload into the memtables of the trees for which `wanted` returns true. Returns
    /// the number of conflicts, without those of hints: a conflict is a record that has the version
    /// and ballot of another record of its key, but different content.
    pub(super) fn apply(
        &mut self,
        sequence: u64,
        payload: &[u8],
        tree_of: impl Fn(u64) -> usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<u64, &'static str> {
        let mut conflicts = 0;
        for operation in Operations::new(payload) {
            let operation = operation?;
            let hash = hash_of(operation.key);
            let index = tree_of(hash);
            if !wanted(index) {
                continue;
            }
            let tree = &mut self.trees[index];
            self.key.clear();
            self.key.push(operation.space as u8);
            self.key.extend_from_slice(operation.key);
            let late = operation.record.version() <= tree.rotated_max;
            let inserted = tree.memtable.insert(&self.key, hash, operation.record, late, sequence);
            // The tombstone of a hint has the version of the hint, so a conflict is expected.
            let conflict = inserted == InsertOutcome::Conflict && operation.space != Space::Hints;
            conflicts += u64::from(conflict);
        }
        Ok(conflicts)
    }

    /// Rotates every memtable that has less than `bound` bytes of free space. Returns true if there
    /// was such a memtable.
    pub(super) fn make_room(&mut self, core: &Core, bound: usize) -> bool {
        let mut rotated = false;
        for (tree, tree_writer) in core.trees.iter().zip(&mut self.trees) {
            if !tree_writer.memtable.fits(bound) {
                rotated = true;
                tree_writer.rotate(core, tree, bound);
            }
        }
        rotated
    }

    /// Rotates full memtables. If the log is too long, also rotates the memtables that pin old
    /// segments: a rarely written tree would pin its segments forever. Returns true if a memtable
    /// was rotated.
    pub(super) fn rotate_full(&mut self, core: &Core) -> bool {
        let wal = self.wal.as_ref().expect("set when the store is open");
        let too_long = wal.segment_count() > log_bound(core);
        let current = wal.first_sequence();
        let mut rotated = false;
        for (tree, tree_writer) in core.trees.iter().zip(&mut self.trees) {
            let memtable = tree_writer.memtable.memtable();
            let full = memtable.used_bytes() >= core.options.memtable_bytes;
            let pins_old_segments = memtable.sequences().is_some_and(|(first, _)| first < current);
            if full || too_long && pins_old_segments {
                rotated = true;
                tree_writer.rotate(core, tree, 0);
            }
        }
        rotated
    }

    /// Rotates every memtable that is not empty.
    pub(super) fn rotate_all(&mut self, core: &Core) {
        for (tree, tree_writer) in core.trees.iter().zip(&mut self.trees) {
            if tree_writer.memtable.memtable().sequences().is_some() {
                tree_writer.rotate(core, tree, 0);
            }
        }
    }

    /// Upper bound of all version times and write times in the store.
    pub(super) fn greatest_time(&self) -> u64 {
        let greatest = |tree: &TreeWriter| {
            let version = tree.rotated_max.max(tree.memtable.max_version());
            version.time.max(tree.rotated_write_time).max(tree.memtable.max_write_time())
        };
        self.trees.iter().map(greatest).max().unwrap_or(0)
    }
}

impl TreeWriter {
    pub(super) fn new(
        memtable: MemtableWriter,
        tables_max: Version,
        tables_write_time: u64,
    ) -> Self {
        Self { memtable, rotated_max: tables_max, rotated_write_time: tables_write_time }
    }

    fn rotate(&mut self, core: &Core, tree: &Tree, bound: usize) {
        self.rotated_max = self.rotated_max.max(self.memtable.max_version());
        self.rotated_write_time = self.rotated_write_time.max(self.memtable.max_write_time());
        let (memtable, memtable_writer) = new_memtable(core.options.memtable_bytes.max(bound));
        self.memtable = memtable_writer;
        tree.replace(|state| {
            let full = std::mem::replace(&mut state.active, memtable);
            if full.sequences().is_some() {
                state.immutables.insert(0, full);
            }
        });
        core.measure_backlog();
    }
}

/// Number of log segments beyond which memtables are rotated early: twice the log of all memtables
/// together, so that early rotations occur only if a tree lags far behind the others.
pub(super) fn log_bound(core: &Core) -> usize {
    let memtables = core.trees.len() * (MAX_IMMUTABLES + 1) * core.options.memtable_bytes;
    2 * memtables.div_ceil(core.options.segment_bytes) + 2
}

/// Creates a memtable for `bytes` bytes of nodes, with some slack.
pub(super) fn new_memtable(bytes: usize) -> (Arc<Memtable>, MemtableWriter) {
    Memtable::new(bytes + MEMTABLE_SLACK.min(bytes / 4))
}
