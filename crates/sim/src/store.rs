//! A node's store: the engine's synchronous core on a disk in memory. What the process's threads
//! do is done here step by step, at simulated moments.
//!
//! ```text
//!  a turn's writes ─▶ waiting ─▶ committing ──(a sync's time passes)──▶ engine.commit ─▶ outcomes
//!                         crash here: nothing, or a torn group, is on the disk
//! ```

use std::mem;
use std::sync::Arc;

use cluster::OpId;
use lsm::{Backlog, Batch, Compactions, Engine, Error, MemDisk, Moment, Options, Whole, Work};
use node::Purpose;
use node::identity::Keeps;

use crate::plan::Plan;
use crate::random::Random;

/// Who gets to know what became of a batch.
#[derive(Debug)]
pub(crate) enum Asker {
    /// A loop, for these writes of a turn.
    Loop(usize, Vec<Purpose>),
    /// A loop, for another node that waits for it.
    Kept(usize, OpId, Keeps),
    /// The node's task.
    Task(Keeps),
    /// The clock: its bound is durable.
    Clock(u64),
}

/// See the module.
pub(crate) struct Store {
    engine: Engine,
    /// Background work found no space: a refusal is for lack of it.
    starved: bool,
    waiting: Vec<(Asker, Batch)>,
    committing: Vec<(Asker, Batch)>,
    compactions: Compactions,
    /// How far the one under way is.
    compaction: Option<Whole>,
}

impl Store {
    /// Opens or recovers what is on the disk.
    pub(crate) fn open(disk: &MemDisk, store_id: u64, plan: &Plan) -> Result<Self, Error> {
        let engine = Engine::open(Arc::new(disk.clone()), options(store_id, plan))?;
        let (waiting, committing) = (Vec::new(), Vec::new());
        let (compactions, compaction) = (Compactions::default(), None);
        Ok(Self { engine, starved: false, waiting, committing, compactions, compaction })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Why no write is taken at the moment, if so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        if self.engine.backlog() != Backlog::Full {
            return None;
        }
        Some(match self.engine.healthy() {
            Err(error) => error,
            Ok(()) if self.starved => Error::NoSpace { what: "tables" },
            Ok(()) => Error::Busy { what: "flushes or compactions are too far behind" },
        })
    }

    /// Queues a batch; whether a group is to be begun with [`Store::begin`].
    pub(crate) fn submit(&mut self, asker: Asker, batch: Batch) -> bool {
        self.waiting.push((asker, batch));
        self.committing.is_empty()
    }

    /// All that waits becomes a group, to be ended with [`Store::end`] when it is synced; whether
    /// there is any.
    pub(crate) fn begin(&mut self) -> bool {
        assert!(self.committing.is_empty(), "one group at a time");
        self.committing = mem::take(&mut self.waiting);
        !self.committing.is_empty()
    }

    /// Commits the group; what became of it, and who asked.
    pub(crate) fn end(&mut self) -> (Result<(), Error>, Vec<Asker>) {
        let group = mem::take(&mut self.committing);
        let result = self.engine.commit(group.iter().map(|(_, batch)| batch)).map(drop);
        (result, group.into_iter().map(|(asker, _)| asker).collect())
    }

    /// One step of each kind of background work; whether there was any.
    pub(crate) fn work(&mut self) -> bool {
        // What fails is tried again, or has failed the store, which writes then show.
        let _ = self.engine.prepare_segment();
        let steps = [self.engine.flush_one(), self.engine.compact_one()];
        self.engine.delete_obsolete_tables();
        self.starved = steps.iter().any(|step| step.as_ref().is_err_and(Error::is_no_space));
        let compacts = self.compact_next();
        compacts || steps.iter().any(|step| matches!(step, Ok(Work::Done)))
    }

    /// Asks for a compaction of the whole store that begins after this; its number.
    pub(crate) fn compact(&mut self) -> u64 {
        self.compactions.ask_anew(Moment::default(), 0)
    }

    /// Whether it, or one after it, came to its end; `None` = neither has ended.
    pub(crate) fn compacted(&self, number: u64) -> Option<bool> {
        self.compactions.has_done(number)
    }

    /// A step of the one that is asked for; whether there is any.
    fn compact_next(&mut self) -> bool {
        if self.compactions.current().is_none() {
            return false;
        }
        let (engine, whole) = (&self.engine, &mut self.compaction);
        let mut step = || -> Result<Work, Error> {
            if whole.is_none() {
                engine.rotate_all();
                while engine.flush_one()? == Work::Done {}
            }
            engine.compact_next(whole.get_or_insert_default())
        };
        let outcome = step();
        let so_far = whole.clone().unwrap_or_default();
        if self.compactions.stepped(outcome, &so_far, Moment::default(), 0) {
            *whole = None;
        }
        true
    }

    /// What `interval` leaves unsynced becomes durable.
    pub(crate) fn sync(&self) {
        // A failure fails the store, which writes then show.
        let _ = self.engine.sync_log();
    }

    /// The process ends here. What was being committed may have reached the disk in part: the power
    /// goes, or the process is killed, within one of the next calls to the disk.
    pub(crate) fn die(self, disk: &MemDisk, random: &mut Random) {
        if !self.committing.is_empty() && random.permille(700) {
            disk.crash_after(random.below(4));
            // Nobody waits for it.
            let _ = self.engine.commit(self.committing.iter().map(|(_, batch)| batch));
        }
    }

    /// Ends the store cleanly.
    pub(crate) fn close(self) {
        // What could not be ended cleanly is recovered.
        let _ = self.engine.close();
    }
}

/// Small, so that a minute of a simulated client's writes is rotated, flushed and compacted.
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
        // Runs are shorter than the age at which a lone node's tombstones go.
        purge: Arc::new(node::purge_rule(|| 0)),
        ..Options::default()
    }
}
