//! The write path: append to the log, sync, insert into memtables, make visible.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::commit_state::CommitState;
use super::core::{Core, add};
use super::identity::STORE;
use super::tree::lock;
use crate::batch::Batch;
use crate::error::{Error, IoOp};
use crate::manifest::{self, Edit};
use crate::wal::{PreparedSegment, Wal, prepare, segment_name};

/// The log, and the writers of the active memtables.
pub(super) struct WritePath {
    writer: Mutex<CommitState>,
    /// The prepared next log segment, if any.
    prepared: Mutex<Option<PreparedSegment>>,
    next_segment: AtomicU64,
    /// Locked while segments are synced without the writer's lock, and while released segments are
    /// removed, because a removed file cannot be synced.
    syncing: Mutex<()>,
}

/// Background work that a commit has caused.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitEffects {
    /// True if a memtable was rotated, which now waits for its flush.
    pub rotated: bool,
    /// True if the prepared segment was activated, so that another segment must be prepared.
    pub segment_activated: bool,
}

impl WritePath {
    /// The write path of a store whose log is not started yet.
    pub(super) fn new(writer: CommitState) -> Self {
        Self {
            writer: Mutex::new(writer),
            prepared: Mutex::new(None),
            next_segment: AtomicU64::new(1),
            syncing: Mutex::new(()),
        }
    }

    /// Starts the log of this process run.
    pub(super) fn start(&self, core: &Core, wal: Wal) {
        core.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
        lock(&self.writer).wal = Some(wal);
    }

    pub(super) fn is_started(&self) -> bool {
        lock(&self.writer).wal.is_some()
    }

    /// Sets the number of the next segment.
    pub(super) fn set_next_segment(&self, number: u64) {
        self.next_segment.store(number, Ordering::Relaxed);
    }

    /// Inserts a group that recovery has read from the log into the memtables of the trees for
    /// which `wanted` returns true. Returns true if memtables were rotated.
    pub(super) fn apply_recovered(
        &self,
        core: &Core,
        (sequence, payload): (u64, &[u8]),
        wanted: impl Fn(usize) -> bool,
    ) -> Result<bool, Error> {
        let mut writer = lock(&self.writer);
        let rotated = writer.make_room(core, CommitState::bound_of(payload));
        let applied = writer.apply(sequence, payload, |hash| core.trees.index_of(hash), wanted);
        drop(writer);
        let conflicts = applied.map_err(|what| {
            Error::corrupt("*.wal", 0, format!("group {sequence} is malformed: {what}"))
        })?;
        core.report_conflicts(conflicts);
        Ok(rotated)
    }

    /// Commits batches together: [`Engine::commit`](super::Engine::commit).
    pub(super) fn commit<'a>(
        &self,
        core: &Core,
        batches: impl Iterator<Item = &'a Batch> + Clone,
    ) -> Result<CommitEffects, Error> {
        let mut writer = lock(&self.writer);
        core.health().check()?;
        let payload_len = batches.clone().map(Batch::byte_len).sum();
        let operations: usize = batches.clone().map(Batch::len).sum();
        let mut committed = CommitEffects {
            segment_activated: self.make_room_in_log(core, &mut writer, payload_len)?,
            rotated: writer.make_room(core, CommitState::bound(payload_len, operations)),
        };
        let wal = writer.wal.as_mut().expect("set when the store is open");
        let before = wal.written_bytes();
        let payloads = batches.clone().map(Batch::bytes);
        let sequence = wal
            .append(payloads, operations as u32)
            .map_err(|error| core.health().fail_outcome_unknown(&error))?;
        add(&core.counters.wal_bytes, wal.written_bytes() - before);
        add(&core.counters.wal_writes, 1);
        add(&core.counters.wal_operations, operations as u64);
        if core.syncs_each_group() || batches.clone().any(Batch::forces_sync) {
            wal.sync().map_err(|error| core.health().fail_outcome_unknown(&error))?;
            add(&core.counters.wal_syncs, 1);
        }
        for batch in batches {
            let applied =
                writer.apply(sequence, batch.bytes(), |hash| core.trees.index_of(hash), |_| true);
            let conflicts = applied.expect("a batch encodes what it was given");
            core.report_conflicts(conflicts);
        }
        core.trees.make_visible(sequence);
        committed.rotated |= writer.rotate_full(core);
        Ok(committed)
    }

    /// Ensures that the current segment has space for a payload of this length. Returns true if a
    /// new segment was activated. If the disk is too full for a new segment, the write fails before
    /// any byte is written, and the store stays usable.
    fn make_room_in_log(
        &self,
        core: &Core,
        writer: &mut CommitState,
        payload_len: usize,
    ) -> Result<bool, Error> {
        let wal = writer.wal.as_mut().expect("set when the store is open");
        if !wal.needs_new_segment(payload_len) {
            return Ok(false);
        }
        let next = self.take_segment(core, Wal::segment_bound(payload_len))?;
        let edits = core.manifest.edits();
        wal.activate(next, edits).map_err(|error| core.health().fail(&error))?;
        core.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
        Ok(true)
    }

    /// Takes the prepared segment, or creates one if the prepared segment is missing or too small.
    /// The lock of `prepared` is held throughout, so segments are activated in the order of their
    /// numbers.
    fn take_segment(&self, core: &Core, at_least: u64) -> Result<PreparedSegment, Error> {
        let mut prepared = lock(&self.prepared);
        match prepared.take() {
            Some(ready) if ready.bytes() >= at_least => return Ok(ready),
            Some(small) => drop(core.files.remove(&small.name())),
            None => {}
        }
        self.new_segment(core, at_least.max(core.options.segment_bytes as u64))
    }

    /// Creates and allocates the next log segment.
    pub(super) fn new_segment(&self, core: &Core, bytes: u64) -> Result<PreparedSegment, Error> {
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let made = prepare(&*core.files.disk, number, bytes, core.syncs_each_group());
        made.map_err(|error| core.health().classify(error))
    }

    /// Prepares the next segment before a commit needs the segment. For a background thread.
    pub(super) fn prepare_segment(&self, core: &Core) -> Result<(), Error> {
        core.health().check()?;
        let mut prepared = lock(&self.prepared);
        if prepared.is_none() {
            *prepared = Some(self.new_segment(core, core.options.segment_bytes as u64)?);
        }
        Ok(())
    }

    /// Removes the prepared segment.
    pub(super) fn remove_prepared(&self, core: &Core) {
        if let Some(prepared) = lock(&self.prepared).take() {
            core.files.remove(&prepared.name());
        }
    }

    /// Activates the last segment of this process run, which receives no groups, so that the next
    /// start has nothing to replay.
    pub(super) fn activate_last_segment(&self, core: &Core) -> Result<(), Error> {
        let last = self.new_segment(core, Wal::segment_bound(0))?;
        let edits = core.manifest.edits();
        let mut writer = lock(&self.writer);
        let wal = writer.wal.as_mut().expect("set when the store is open");
        let activated = wal.activate(last, edits).and_then(|()| wal.sync());
        activated.map_err(|error| core.health().fail(&error))
    }

    /// Upper bound of all version times and write times in the store.
    pub(super) fn greatest_time(&self) -> u64 {
        lock(&self.writer).greatest_time()
    }

    /// Rotates every memtable that is not empty.
    pub(super) fn rotate_all(&self, core: &Core) {
        lock(&self.writer).rotate_all(core);
    }

    /// Syncs the groups that the modes `interval` and `never` have left unsynced. Does not block
    /// commits.
    pub(super) fn sync(&self, core: &Core) -> Result<(), Error> {
        core.health().check()?;
        let _released_segments_stay = lock(&self.syncing);
        let target = {
            let writer = lock(&self.writer);
            let wal = writer.wal.as_ref().expect("set when the store is open");
            if wal.durable() == wal.last_sequence() {
                return Ok(());
            }
            wal.sync_target()
        };
        target.run().map_err(|error| core.health().fail(&error))?;
        add(&core.counters.wal_syncs, 1);
        let mut writer = lock(&self.writer);
        writer.wal.as_mut().expect("set when the store is open").record_synced(&target);
        Ok(())
    }

    pub(super) fn log_end(&self) -> Edit {
        Edit::End(lock(&self.writer).wal.as_ref().expect("set when the store is open").end())
    }

    /// The oldest segment that is needed to replay all groups from sequence `floor` on; `None`
    /// before the log is started.
    pub(super) fn oldest_needed(&self, floor: u64) -> Option<u64> {
        lock(&self.writer).wal.as_ref().map(|wal| wal.oldest_needed(floor))
    }

    /// Removes the segments before `oldest_segment`.
    pub(super) fn release_segments(&self, core: &Core, oldest_segment: u64) {
        let released = {
            let mut writer = lock(&self.writer);
            let Some(wal) = writer.wal.as_mut() else { return };
            let released = wal.release_segments(oldest_segment);
            core.counters.wal_segments.store(wal.segment_count() as u64, Ordering::Relaxed);
            released
        };
        let _not_being_synced = lock(&self.syncing);
        for segment in released {
            core.files.remove(&segment_name(segment));
        }
    }

    /// Fails the store if its directory was moved or removed, or lost its files. Open descriptors
    /// would keep working, but data written through them could not be found again.
    pub(super) fn check_directory(&self, core: &Core) -> Result<(), Error> {
        core.health().check()?;
        let _released_segments_stay = lock(&self.syncing);
        let segment = lock(&self.writer).wal.as_ref().map(|wal| segment_name(wal.end().segment));
        let names = [STORE, manifest::NAME].into_iter().chain(segment.as_deref());
        for name in names {
            let found = core.files.disk.find(name);
            found.map_err(|error| core.health().classify(Error::io(IoOp::Stat, name, error)))?;
        }
        Ok(())
    }
}
