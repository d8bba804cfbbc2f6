//! A node's store: the engine's synchronous core on an in-memory disk. In production, threads call
//! the core; here the simulation does their work step by step, at simulated times.
//!
//! ```text
//!  a turn's writes ─▶ waiting ─▶ committing ──(time of a sync)──▶ engine.commit ─▶ outcomes
//!                         crash here: nothing, or a torn group, is on the disk
//! ```

use std::mem;
use std::sync::Arc;

use lsm::{
    Backlog, Batch, Engine, Error, FullCompaction, MemDisk, Moment, Options, RequestedCompactions,
    StepOutcome,
};
use protocol::OpId;
use server::WritePurpose;
use server::identity::OwnRecords;

use crate::plan::Plan;
use crate::random::Random;

/// The recipient of a batch's outcome, with a description of the batch's content.
#[derive(Debug)]
pub(crate) enum BatchOwner {
    /// A loop, for the writes of one turn.
    Loop(usize, Vec<WritePurpose>),
    /// A loop, for records of the node itself (a promise, for example) that another node asked for.
    Kept(usize, OpId, OwnRecords),
    /// The node's task, for records of the node itself.
    Task(OwnRecords),
    /// The clock, for a bound of its versions.
    Clock(u64),
}

/// A node's store on a simulated disk.
pub(crate) struct Store {
    engine: Engine,
    /// True if the last background work found no space. A refusal is then reported as a lack of
    /// space.
    lacks_space: bool,
    waiting: Vec<(BatchOwner, Batch)>,
    committing: Vec<(BatchOwner, Batch)>,
    compactions: RequestedCompactions,
    /// State of the requested compaction that runs, if any.
    compaction: Option<FullCompaction>,
}

impl Store {
    /// Opens or recovers the store on the disk.
    pub(crate) fn open(disk: &MemDisk, store_id: u64, plan: &Plan) -> Result<Self, Error> {
        let engine = Engine::open(Arc::new(disk.clone()), options(store_id, plan))?;
        let (waiting, committing) = (Vec::new(), Vec::new());
        let (compactions, compaction) = (RequestedCompactions::default(), None);
        Ok(Self { engine, lacks_space: false, waiting, committing, compactions, compaction })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the reason why no write is accepted at the moment, or `None` if writes are accepted.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if self.engine.backlog() != Backlog::Full {
            return None;
        }
        Some(match self.engine.check_health() {
            Err(error) => error,
            Ok(()) if self.lacks_space => Error::NoSpace { what: "tables" },
            Ok(()) => Error::Busy { what: "flushes or compactions are too far behind" },
        })
    }

    /// Queues a batch. Returns true if the caller should begin a group by [`Store::begin`].
    pub(crate) fn submit(&mut self, owner: BatchOwner, batch: Batch) -> bool {
        self.waiting.push((owner, batch));
        self.committing.is_empty()
    }

    /// Moves all waiting batches into a group, which [`Store::end`] ends after a sync. Returns true
    /// if the group has any batch.
    pub(crate) fn begin(&mut self) -> bool {
        assert!(self.committing.is_empty(), "one group at a time");
        self.committing = mem::take(&mut self.waiting);
        !self.committing.is_empty()
    }

    /// Commits the group. Returns the outcome and the recipients of the group's batches.
    pub(crate) fn end(&mut self) -> (Result<(), Error>, Vec<BatchOwner>) {
        let group = mem::take(&mut self.committing);
        let result = self.engine.commit(group.iter().map(|(_, batch)| batch)).map(drop);
        (result, group.into_iter().map(|(owner, _)| owner).collect())
    }

    /// Does one step of each kind of background work. Returns true if there was any work.
    pub(crate) fn work(&mut self) -> bool {
        // A failed step is tried again, or has failed the store; later writes then report the
        // failure.
        let _ = self.engine.prepare_segment();
        let steps = [self.engine.flush_one(), self.engine.compact_one()];
        self.engine.delete_obsolete_tables();
        self.lacks_space = steps.iter().any(|step| step.as_ref().is_err_and(Error::is_no_space));
        let compacts = self.compact_next();
        compacts || steps.iter().any(|step| matches!(step, Ok(StepOutcome::Done)))
    }

    /// Requests a compaction of the whole store that begins after this call; returns its number.
    pub(crate) fn compact(&mut self) -> u64 {
        self.compactions.request_anew(Moment::default(), 0)
    }

    /// Returns true if compaction `number` or a later one succeeded, and false if it failed.
    /// Returns `None` until one of them has ended.
    pub(crate) fn compaction_succeeded(&self, number: u64) -> Option<bool> {
        self.compactions.has_succeeded(number)
    }

    /// Does a step of the requested compaction. Returns true if there is one.
    fn compact_next(&mut self) -> bool {
        if self.compactions.current().is_none() {
            return false;
        }
        let (engine, whole) = (&self.engine, &mut self.compaction);
        let mut step = || -> Result<StepOutcome, Error> {
            if whole.is_none() {
                engine.rotate_all();
                while engine.flush_one()? == StepOutcome::Done {}
            }
            engine.compact_next(whole.get_or_insert_default())
        };
        let outcome = step();
        let so_far = whole.clone().unwrap_or_default();
        if self.compactions.record_step(outcome, &so_far, Moment::default(), 0) {
            *whole = None;
        }
        true
    }

    /// Syncs the writes that sync mode `interval` leaves unsynced.
    pub(crate) fn sync(&self) {
        // A failed sync fails the store, and later writes report the failure.
        let _ = self.engine.sync_log();
    }

    /// Ends the store as a kill or a power cut would. A part of the group being committed may reach
    /// the disk: the crash happens at one of the next disk calls.
    pub(crate) fn crash(self, disk: &MemDisk, random: &mut Random) {
        if !self.committing.is_empty() && random.permille(700) {
            disk.crash_after(random.below(4));
            // Nobody receives the outcome, because the process has ended.
            let _ = self.engine.commit(self.committing.iter().map(|(_, batch)| batch));
        }
    }

    /// Closes the store cleanly.
    pub(crate) fn close(self) {
        // The next open recovers the store if this close fails.
        let _ = self.engine.close();
    }
}

/// Returns options with sizes so small that the writes of one simulated minute cause rotations,
/// flushes and compactions.
fn options(store_id: u64, plan: &Plan) -> Options {
    Options {
        new_store_id: store_id,
        new_tree_bits: 0,
        sync: plan.sync,
        memtable_bytes: plan.memtable_bytes,
        cache_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        block_bytes: 1 << 10,
        table_bytes: 128 << 10,
        level0_tables: 2,
        level1_bytes: 256 << 10,
        level_ratio: 4,
        // Runs are shorter than the age at which a lone node purges tombstones.
        purge: Arc::new(server::purge_rule(|| 0)),
        ..Options::default()
    }
}
