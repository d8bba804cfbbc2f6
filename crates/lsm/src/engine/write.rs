//! The write path: append to the log, sync, insert into memtables, make visible.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::tree::{Tree, lock};
use super::{Engine, InternalKey, MAX_IMMUTABLES, add, hash_of};
use crate::batch::{Batch, Operations, Space};
use crate::error::Error;
use crate::manifest::Edit;
use crate::memtable::{Inserted, Memtable, MemtableWriter};
use crate::wal::{Prepared, Wal, prepare};
use record::Version;

/// Upper bound of a node's bytes beyond its key and record (head, tower, padding). `Writer::bound`
/// checks it against the memtable.
const NODE_OVERHEAD: usize = 96;
/// Bytes of a memtable beyond its target, so that a group seldom forces an early rotation.
const MEMTABLE_SLACK: usize = 256 * 1024;

/// State that only the commit leader accesses.
pub(super) struct Writer {
    /// `None` while the store is being opened.
    pub(super) wal: Option<Wal>,
    pub(super) trees: Vec<TreeWriter>,
    key: Vec<u8>,
}

/// The writer's state of one tree.
pub(super) struct TreeWriter {
    memtable: MemtableWriter,
    /// Highest version in any rotated memtable or table. A record that arrives with no higher
    /// version is late, whatever its ballot.
    rotated_max: Version,
    /// Latest write time in any rotated memtable or table.
    rotated_when: u64,
}

/// Background work that a commit has caused.
#[derive(Debug, Clone, Copy, Default)]
pub struct Committed {
    /// A memtable waits for its flush.
    pub rotated: bool,
    /// The prepared segment has been activated.
    pub switched: bool,
}

impl Writer {
    pub(super) fn new(trees: Vec<TreeWriter>) -> Self {
        Self { wal: None, trees, key: Vec::new() }
    }

    /// Upper bound of the memtable bytes for a payload of this length and number of operations.
    fn bound(payload_len: usize, operations: usize) -> usize {
        debug_assert!(MemtableWriter::bound(0, 0) <= NODE_OVERHEAD);
        payload_len + operations * NODE_OVERHEAD
    }

    /// Upper bound of the memtable bytes for a payload read from the log.
    pub(super) fn bound_of(payload: &[u8]) -> usize {
        Self::bound(payload.len(), Operations::new(payload).count())
    }

    /// Inserts a payload into the memtables. Returns the number of records that conflict with
    /// another record of the same write.
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
            // A hint is deleted under the version that it already has.
            let conflict = inserted == Inserted::Conflict && operation.space != Space::Hints;
            conflicts += u64::from(conflict);
        }
        Ok(conflicts)
    }
}

impl TreeWriter {
    pub(super) fn new(memtable: MemtableWriter, tables_max: Version, tables_when: u64) -> Self {
        Self { memtable, rotated_max: tables_max, rotated_when: tables_when }
    }
}

impl Engine {
    /// Commits batches together: makes them durable as the sync mode requires, then visible, in
    /// this order. Concurrent callers wait for each other.
    pub fn commit<'a>(
        &self,
        batches: impl Iterator<Item = &'a Batch> + Clone,
    ) -> Result<Committed, Error> {
        let mut writer = lock(&self.writer);
        self.healthy()?;
        let payload_len = batches.clone().map(Batch::byte_len).sum();
        let operations: usize = batches.clone().map(Batch::len).sum();
        let mut committed = Committed {
            switched: self.make_room_in_log(&mut writer, payload_len)?,
            rotated: self.make_room(&mut writer, Writer::bound(payload_len, operations)),
        };
        let wal = writer.wal.as_mut().expect("set when the store is open");
        let before = wal.written();
        let payloads = batches.clone().map(Batch::bytes);
        let sequence =
            wal.append(payloads, operations as u32).map_err(|error| self.fail_begun(&error))?;
        add(&self.counters.wal_bytes, wal.written() - before);
        add(&self.counters.wal_writes, 1);
        add(&self.counters.wal_operations, operations as u64);
        if self.synced_per_group() || batches.clone().any(Batch::is_durable) {
            wal.sync().map_err(|error| self.fail_begun(&error))?;
            add(&self.counters.wal_syncs, 1);
        }
        for batch in batches {
            let applied =
                writer.apply(sequence, batch.bytes(), |hash| self.tree_of(hash), |_| true);
            let conflicts = applied.expect("a batch encodes what it was given");
            self.note_conflicts(conflicts);
        }
        self.visible.store(sequence, Ordering::Release);
        committed.rotated |= self.rotate_full(&mut writer);
        Ok(committed)
    }

    pub(super) fn note_conflicts(&self, conflicts: u64) {
        if conflicts > 0 {
            add(&self.counters.version_conflicts, conflicts);
            tracing::warn!(conflicts, "found records with the same version and different content");
        }
    }

    /// Ensures that the current segment has room for a payload of this length. A failure has
    /// written nothing, so the store remains usable: while the disk is full, writes are refused.
    fn make_room_in_log(&self, writer: &mut Writer, payload_len: usize) -> Result<bool, Error> {
        let wal = writer.wal.as_mut().expect("set when the store is open");
        if !wal.needs_switch(payload_len) {
            return Ok(false);
        }
        let next = self.take_segment(Wal::segment_bound(payload_len))?;
        let edits = self.manifest_edits.load(Ordering::Relaxed);
        wal.switch(next, edits).map_err(|error| self.fail(&error))?;
        self.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Takes the prepared segment, or creates one if that is missing or too small. The lock is held
    /// throughout, so segments are activated in the order of their numbers.
    fn take_segment(&self, at_least: u64) -> Result<Prepared, Error> {
        let mut prepared = lock(&self.prepared);
        match prepared.take() {
            Some(ready) if ready.bytes() >= at_least => return Ok(ready),
            Some(small) => drop(self.remove_file(&small.name())),
            None => {}
        }
        self.new_segment(at_least.max(self.options.segment_bytes as u64))
    }

    /// Creates and allocates the next log segment.
    pub(super) fn new_segment(&self, bytes: u64) -> Result<Prepared, Error> {
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let made = prepare(&*self.disk, number, bytes, self.synced_per_group());
        made.map_err(|error| self.classify(error))
    }

    /// Prepares the next segment before it is needed. Called from the background.
    pub fn prepare_segment(&self) -> Result<(), Error> {
        self.healthy()?;
        let mut prepared = lock(&self.prepared);
        if prepared.is_none() {
            *prepared = Some(self.new_segment(self.options.segment_bytes as u64)?);
        }
        Ok(())
    }

    /// Rotates every memtable that has no room for `bound` bytes.
    pub(super) fn make_room(&self, writer: &mut Writer, bound: usize) -> bool {
        let mut rotated = false;
        for (tree, tree_writer) in self.trees.iter().zip(&mut writer.trees) {
            if !tree_writer.memtable.fits(bound) {
                rotated = true;
                self.rotate(tree, tree_writer, bound);
            }
        }
        rotated
    }

    /// Rotates full memtables. If the log has grown too long, also rotates those that pin old
    /// segments: a tree that is rarely written would pin them forever.
    fn rotate_full(&self, writer: &mut Writer) -> bool {
        let wal = writer.wal.as_ref().expect("set when the store is open");
        let too_long = wal.segment_count() > self.log_bound();
        let current = wal.first_sequence();
        let mut rotated = false;
        for (tree, tree_writer) in self.trees.iter().zip(&mut writer.trees) {
            let memtable = tree_writer.memtable.memtable();
            let full = memtable.used() >= self.options.memtable_bytes;
            let holds_old = memtable.sequences().is_some_and(|(first, _)| first < current);
            if full || too_long && holds_old {
                rotated = true;
                self.rotate(tree, tree_writer, 0);
            }
        }
        rotated
    }

    /// Number of log segments beyond which memtables are rotated early: twice the log of all
    /// memtables together, so that this only happens if a tree lags far behind the others.
    pub(super) fn log_bound(&self) -> usize {
        let memtables = self.trees.len() * (MAX_IMMUTABLES + 1) * self.options.memtable_bytes;
        2 * memtables.div_ceil(self.options.segment_bytes) + 2
    }

    /// Upper bound of all version times and write times
    /// ([`RecordRef::when`](crate::RecordRef::when)) in all spaces. Records removed since may have
    /// had the greatest one.
    pub fn greatest_time(&self) -> u64 {
        let writer = lock(&self.writer);
        let greatest = |tree: &TreeWriter| {
            let version = tree.rotated_max.max(tree.memtable.max_version());
            version.time.max(tree.rotated_when).max(tree.memtable.max_when())
        };
        writer.trees.iter().map(greatest).max().unwrap_or(0)
    }

    /// Rotates every memtable that is not empty.
    pub fn rotate_all(&self) {
        let mut writer = lock(&self.writer);
        for (tree, tree_writer) in self.trees.iter().zip(&mut writer.trees) {
            if tree_writer.memtable.memtable().sequences().is_some() {
                self.rotate(tree, tree_writer, 0);
            }
        }
    }

    fn rotate(&self, tree: &Tree, writer: &mut TreeWriter, bound: usize) {
        writer.rotated_max = writer.rotated_max.max(writer.memtable.max_version());
        writer.rotated_when = writer.rotated_when.max(writer.memtable.max_when());
        let (memtable, memtable_writer) = new_memtable(self.options.memtable_bytes.max(bound));
        writer.memtable = memtable_writer;
        tree.replace(|state| {
            let full = std::mem::replace(&mut state.active, memtable);
            if full.sequences().is_some() {
                state.immutables.insert(0, full);
            }
        });
        self.measure_backlog();
    }

    /// Syncs the groups that the modes `interval` and `never` have left unsynced. Does not block
    /// commits.
    pub fn sync_log(&self) -> Result<(), Error> {
        self.healthy()?;
        let _retired_segments_stay = lock(&self.background.log_sync);
        let target = {
            let writer = lock(&self.writer);
            let wal = writer.wal.as_ref().expect("set when the store is open");
            if wal.durable() == wal.last_sequence() {
                return Ok(());
            }
            wal.sync_target()
        };
        target.run().map_err(|error| self.fail(&error))?;
        add(&self.counters.wal_syncs, 1);
        let mut writer = lock(&self.writer);
        writer.wal.as_mut().expect("set when the store is open").synced(&target);
        Ok(())
    }

    /// Ends the log cleanly after the last commit: flushes all memtables and leaves a segment
    /// without groups, so that the next start has nothing to replay. Records the log's end, by
    /// which a later recovery distinguishes a damaged last group, or a missing last segment, from a
    /// torn tail. If there is no space for this, the log stays as it is, synced.
    pub fn close(&self) -> Result<(), Error> {
        self.sync_log()?;
        self.unless_it_passes(self.empty_log())?;
        self.unless_it_passes(self.edit_manifest(&[self.log_end()]))
    }

    fn unless_it_passes(&self, closed: Result<(), Error>) -> Result<(), Error> {
        match closed {
            Err(error) if error.passes() => {
                self.healthy()?;
                tracing::warn!(%error, "cannot flush at close; the log is synced and will be \
                    replayed at the next start");
                Ok(())
            }
            closed => closed,
        }
    }

    fn empty_log(&self) -> Result<(), Error> {
        if let Some(prepared) = lock(&self.prepared).take() {
            self.remove_file(&prepared.name());
        }
        self.rotate_all();
        self.flush_rotated()?;
        let last = self.new_segment(Wal::segment_bound(0))?;
        let edits = self.manifest_edits.load(Ordering::Relaxed);
        {
            let mut writer = lock(&self.writer);
            let wal = writer.wal.as_mut().expect("set when the store is open");
            let begun = wal.switch(last, edits).and_then(|()| wal.sync());
            begun.map_err(|error| self.fail(&error))?;
        }
        self.advance_floor()
    }

    fn log_end(&self) -> Edit {
        Edit::End(lock(&self.writer).wal.as_ref().expect("set when the store is open").end())
    }

    /// Returns true if any memtable holds a record of the internal key.
    pub(super) fn in_memtables(state: &super::tree::TreeState, key: &[u8]) -> bool {
        let hash = hash_of(&key[1..]);
        state.memtables().any(|memtable| memtable.get(key, hash).is_some())
    }
}

/// Creates a memtable with room for `bytes` and some slack.
pub(super) fn new_memtable(bytes: usize) -> (Arc<Memtable>, MemtableWriter) {
    Memtable::new(bytes + MEMTABLE_SLACK.min(bytes / 4))
}

impl InternalKey {
    pub(super) fn start_of(space: crate::batch::Space, start: &[u8]) -> Vec<u8> {
        Self::new(space, start).bytes().to_vec()
    }
}
