//! The engine, without threads or clocks: all work happens within the call that requests it, so the
//! same code runs under [`crate::Db`]'s threads and, step by step, under a simulator.
//!
//! ```text
//!  commit ─▶ log ─▶ (sync) ─▶ memtable ─▶ visible        one caller at a time, in log order
//!                               │ full: rotate
//!  flush_one ◀──────────────────┘ oldest first ─▶ table in level 0 ─▶ manifest ─▶ log released
//!  compact_one: tables ─▶ merged tables a level deeper ─▶ manifest ─▶ old tables removed
//!  get, snapshot, scan: any thread, any time, never wait for the above
//! ```
//!
//! The parts of the engine, each of which owns the state of one kind of work:
//!
//! ```text
//!  Engine ┬ StoreFormat                 format of the store, which can be raised
//!         ├ WritePath ── CommitState   log and active memtables: commit, rotate, sync
//!         ├ Flusher                     one flush at a time
//!         ├ Compactor                   one compaction at a time; tables known to be damaged
//!         └ Core ┬ Trees                memtables and tables, and reads of them
//!                ├ SharedManifest       list of the tables in use
//!                ├ Files ── Health      files of the store; the failure that ends its writes
//!                └ BacklogMeter         backlog of flushes and compactions
//! ```
//!
//! The other parts borrow the core in each call. The state of one operation has a type of its own:
//! `UnfinishedTables` (tables that a step writes), `OrphanFilter`, `Discard`, `Removal`,
//! `FullCompaction`.
//!
//! Invariants:
//! * A record becomes visible only when it is as durable as the sync mode requires, and a batch
//!   becomes visible as a whole.
//! * The record with the greatest version, then ballot, wins, whatever the order of arrival. A
//!   record in a memtable or table is marked *late* unless its version is greater than all versions
//!   in the older memtables and tables (those *below* its own); a read stops at the first hit that
//!   is not late. A record of a conditional write has the version of the record that it continues,
//!   so it is late as soon as the continued record lies below.
//! * Memtables of a tree are flushed in the order of their rotation. The manifest names a table
//!   only after the table's content and name are durable. The table's inputs, and the log that it
//!   replaces, are removed only after the manifest's edit is durable.
//! * After any failure, even in the background, other than a full disk or a lack of file
//!   descriptors, the engine writes nothing until the store is reopened.

mod backlog;
mod commit_state;
mod compactor;
mod core;
mod damaged_tables;
mod discard;
mod files;
mod flush;
mod full_compaction;
mod health;
mod identity;
mod internal_key;
mod lookup;
mod open;
mod orphan_filter;
mod remove;
mod shared_manifest;
mod snapshot;
mod store_format;
#[cfg(test)]
mod tests;
mod tree;
mod trees;
mod unfinished_tables;
mod verified_scan;
mod write_path;
mod yield_budget;

use std::sync::Arc;

use self::core::Core;
pub use backlog::Backlog;
use compactor::Compactor;
use discard::Discard;
pub use discard::{Discarded, KeyRange};
use flush::Flusher;
pub use flush::StepOutcome;
pub use full_compaction::FullCompaction;
pub use lookup::{HeadLookup, Lookup, NewerVersion, RecordHead};
pub use remove::RemovalFilter;
pub use snapshot::{Scan, Snapshot};
use store_format::StoreFormat;
pub use verified_scan::{Damaged, ScanCost, ScanItem, VerifiedScan};
pub use write_path::CommitEffects;
use write_path::WritePath;

use crate::batch::{Batch, Space};
use crate::error::Error;
use crate::options::Options;
use crate::purge::PurgeRule;
use crate::stats::Stats;
use crate::table::ReadMode;
use record::{Record, Version};

/// Number of a tree's rotated memtables at which the backlog is full: writes are refused until a
/// memtable is flushed. The number limits the memory that memtables use.
pub const MAX_IMMUTABLES: usize = 3;

/// The storage engine, without threads or clocks. Each part executes one kind of work, and borrows
/// the core for the work.
pub struct Engine {
    core: Core,
    format: StoreFormat,
    write_path: WritePath,
    flusher: Flusher,
    compactor: Compactor,
}

impl Engine {
    /// The rule that decides which tombstones and expired values may be purged. The owner may raise
    /// the rule's watermark at any time.
    pub fn purge_rule(&self) -> &Arc<PurgeRule> {
        &self.core.options.purge
    }

    pub(crate) fn options(&self) -> &Options {
        &self.core.options
    }

    /// Fails if the store rejects writes.
    pub fn check_health(&self) -> Result<(), Error> {
        self.core.health().check()
    }

    /// State of the flush and compaction backlog.
    pub fn backlog(&self) -> Backlog {
        self.core.backlog.read()
    }

    /// Returns true if there is nothing left to flush or compact.
    pub fn is_idle(&self) -> bool {
        self.compactor.is_idle(&self.core)
    }

    /// Counters and gauges, without those that [`crate::Db`] adds.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Looks up the newest record of `key` and verifies its checksum.
    #[inline]
    pub fn get(&self, space: Space, key: &[u8], mode: ReadMode) -> Result<Lookup, Error> {
        self.note_damage(self.core.trees.get(space, key, mode))
    }

    /// Notes the damage that a read found, if its result is such an error.
    #[inline]
    fn note_damage<T>(&self, read: Result<T, Error>) -> Result<T, Error> {
        read.inspect_err(|error| self.core.trees.damaged_tables().note_read(error))
    }

    /// Reads the newest record of `key`, tombstones included; waits for the disk if necessary.
    pub fn read(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        self.note_damage(self.core.trees.read(space, key))
    }

    /// Looks up the newest record of `key` without blocking, and returns its fields. The value,
    /// which may be long, is not copied.
    pub fn lookup_head(&self, space: Space, key: &[u8]) -> Result<HeadLookup, Error> {
        self.note_damage(self.core.trees.lookup_head(space, key))
    }

    /// Determines without blocking whether `key` has a record with a version greater than
    /// `version`. A conditional write keeps the version of the record that it continues, so its
    /// record does not count as newer. Tables without a greater version are not searched: for a
    /// current version, the memtables suffice.
    pub fn holds_newer(
        &self,
        space: Space,
        key: &[u8],
        version: Version,
    ) -> Result<NewerVersion, Error> {
        self.note_damage(self.core.trees.holds_newer(space, key, version))
    }

    /// Sequence of the last visible group. Sequences never decrease, even across restarts.
    pub fn sequence(&self) -> u64 {
        self.core.trees.sequence()
    }

    /// A point-in-time view of all trees.
    pub fn snapshot(&self) -> Snapshot {
        self.core.trees.snapshot()
    }

    /// Commits batches together: makes them durable as the sync mode requires, then visible, in
    /// this order. Concurrent callers wait for each other.
    pub fn commit<'a>(
        &self,
        batches: impl Iterator<Item = &'a Batch> + Clone,
    ) -> Result<CommitEffects, Error> {
        self.write_path.commit(&self.core, batches)
    }

    /// Upper bound of all version times and write times
    /// ([`RecordRef::write_time`](crate::RecordRef::write_time)) in all spaces. It may be the time
    /// of a record that was removed later.
    pub fn greatest_time(&self) -> u64 {
        self.write_path.greatest_time()
    }

    /// Rotates every memtable that is not empty.
    pub fn rotate_all(&self) {
        self.write_path.rotate_all(&self.core);
    }

    /// Prepares the next log segment before a commit needs the segment. For a background thread.
    pub fn prepare_segment(&self) -> Result<(), Error> {
        self.write_path.prepare_segment(&self.core)
    }

    /// Syncs the groups that the modes `interval` and `never` have left unsynced. Does not block
    /// commits.
    pub fn sync_log(&self) -> Result<(), Error> {
        self.write_path.sync(&self.core)
    }

    /// Fails the store if its directory was moved or removed, or lost its files. Open descriptors
    /// would keep working, but data written through them could not be found again.
    pub fn check_directory(&self) -> Result<(), Error> {
        self.write_path.check_directory(&self.core)
    }

    /// Flushes the oldest rotated memtable of all trees.
    pub fn flush_one(&self) -> Result<StepOutcome, Error> {
        self.flusher.flush_one(&self.core, &self.write_path)
    }

    /// Flushes all rotated memtables.
    fn flush_rotated(&self) -> Result<(), Error> {
        self.flusher.flush_rotated(&self.core, &self.write_path)
    }

    /// Executes the most urgent compaction, or, if no compaction is due, one that purges records.
    pub fn compact_one(&self) -> Result<StepOutcome, Error> {
        self.compactor.compact_one(&self.core)
    }

    /// Executes the next step of a compaction of the whole store; [`StepOutcome::Nothing`] = the
    /// compaction is complete.
    pub fn compact_next(&self, full: &mut FullCompaction) -> Result<StepOutcome, Error> {
        full.next_step(&self.core, &self.compactor)
    }

    /// Compacts all tables of every tree into its deepest level, without flushing first.
    pub fn compact_all(&self) -> Result<(), Error> {
        let mut full = FullCompaction::default();
        while self.compact_next(&mut full)? == StepOutcome::Done {}
        Ok(())
    }

    /// Bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.core.trees.table_bytes()
    }

    /// Removes the files of replaced tables that have no readers left.
    pub fn delete_obsolete_tables(&self) {
        self.core.files.delete_obsolete_tables();
    }

    /// Discards the unreadable blocks and records whose keys are within `ranges` of `space`, as
    /// reported by [`Snapshot::verified_scan`](super::Snapshot). Reads of other damaged keys keep
    /// failing. All memtables are flushed first, so that everything written is durable.
    ///
    /// Waits for the disk. Reads and writes continue in the meantime; other compactions wait.
    pub fn discard(&self, space: Space, ranges: &[KeyRange]) -> Result<Discarded, Error> {
        self.rotate_all();
        self.flush_rotated()?;
        Discard::new(&self.core, &self.compactor, space, ranges).run()
    }

    /// Flushes all memtables, then calls `each` with the space, the key and the write time of each
    /// record that [`Engine::remove_above`] would remove. A key may occur more than once.
    pub fn records_above(
        &self,
        above: RemovalFilter<'_>,
        each: impl FnMut(Space, &[u8], u64),
    ) -> Result<(), Error> {
        self.rotate_all();
        self.flush_rotated()?;
        remove::records_above(&self.core, above, each)
    }

    /// Flushes all memtables, then removes the selected records and returns their number. Nothing
    /// else may use the store meanwhile.
    pub fn remove_above(&self, above: RemovalFilter<'_>) -> Result<u64, Error> {
        self.rotate_all();
        self.flush_rotated()?;
        remove::remove_above(&self.core, above)
    }

    /// Makes running compactions stop at their next output table.
    pub(crate) fn begin_closing(&self) {
        self.compactor.begin_closing();
    }

    /// Ends the log cleanly after the last commit: flushes all memtables and leaves a segment
    /// without groups, so that the next start has nothing to replay. Records the log's end, by
    /// which a later recovery distinguishes a damaged last group, or a missing last segment, from a
    /// torn tail. If the disk has no space for these steps, the log stays unchanged and synced.
    pub fn close(&self) -> Result<(), Error> {
        self.sync_log()?;
        self.unless_transient(self.empty_log())?;
        self.unless_transient(self.core.edit_manifest(&[self.write_path.log_end()]))
    }

    fn unless_transient(&self, closed: Result<(), Error>) -> Result<(), Error> {
        match closed {
            Err(error) if error.is_transient() => {
                self.check_health()?;
                tracing::warn!(%error, "cannot flush at close; the log is synced and will be \
                    replayed at the next start");
                Ok(())
            }
            closed => closed,
        }
    }

    fn empty_log(&self) -> Result<(), Error> {
        let Self { core, write_path, flusher, .. } = self;
        write_path.remove_prepared(core);
        self.rotate_all();
        self.flush_rotated()?;
        write_path.activate_last_segment(core)?;
        flusher.advance_floor(core, write_path)
    }
}
