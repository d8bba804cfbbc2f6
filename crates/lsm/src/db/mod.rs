//! The store as callers see it: the engine, the queue that groups commits, and the threads that
//! flush, compact and look after the log.
//!
//! ```text
//!  put, write_batch, commit ──▶ ┌ commit queue ┐ ──▶ engine.commit, by whoever leads:
//!  submit (never waits) ──────▶ └──────────────┘     a waiting caller, or the commit thread
//!                     flush thread · compaction thread · log thread (next segment, interval sync)
//! ```

mod commit;
mod complaints;
#[cfg(test)]
mod tests;
mod threads;
mod times;
mod whole;

use std::sync::Arc;
use std::time::{Duration, Instant};

use commit::CommitQueue;
use complaints::Complaints;
use parking_lot::Mutex;
use profile::{Place, WaitKind};
use threads::{Signals, Threads};
use times::Times;

use crate::asked_compactions::{Compaction, Compactions, Moment};
use crate::batch::{Batch, Space};
use crate::disk::Disk;
use crate::engine::{Backlog, Engine, Scan, Snapshot};
use crate::error::Error;
use crate::options::{Options, SyncMode};
use crate::stats::Stats;
use record::{Record, Version};

/// How far the background work is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// Writes need not wait.
    Clear,
    /// Wait this long before the next write.
    Slow(Duration),
    /// Refuse writes for now.
    Full,
}

/// The longest that one write is slowed down; reached as the backlog nears its limit. The delay
/// grows with the square of the backlog, so that it sets in smoothly.
const MAX_SLOWDOWN: Duration = Duration::from_millis(20);
/// How long [`Db::write_batch`] waits for room before it gives up as busy.
const MAX_WAIT_FOR_ROOM: Duration = Duration::from_secs(60);

/// Where it is waited, for profiles.
static SLOWED: Place = Place::new(WaitKind::Queue, "writes: slowed by flush or compaction backlog");

/// A store. Cheap to share by reference or `Arc`; dropped, it stops its threads.
pub struct Db {
    shared: Arc<Shared>,
    threads: Option<Threads>,
}

/// What the threads share with callers.
struct Shared {
    engine: Engine,
    queue: CommitQueue,
    signals: Signals,
    times: Times,
    compactions: Mutex<Compactions>,
    complaints: Complaints,
    opened: Instant,
}

impl Db {
    /// Opens the store on `disk`, creating it if the disk is empty, recovering it otherwise.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let engine = Engine::open(disk, options)?;
        let (queue, signals, times) = (CommitQueue::new(), Signals::default(), Times::new());
        let (compactions, opened) = (Mutex::default(), Instant::now());
        let complaints = Complaints::default();
        let shared = Shared { engine, queue, signals, times, compactions, complaints, opened };
        let shared = Arc::new(shared);
        let threads = Threads::start(&shared)?;
        Ok(Self { shared, threads: Some(threads) })
    }

    /// The engine without its threads, for reads. What were committed by it would be in no group
    /// with what others write meanwhile.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The newest record of `key`, tombstones included. May wait for the disk.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        self.shared.engine.read(space, key)
    }

    /// Writes one value; returns once it is as durable as [`SyncMode`] says.
    pub fn put(
        &self,
        space: Space,
        key: &[u8],
        version: Version,
        value: &[u8],
    ) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.put(space, key, version, value)?;
        self.write_batch(batch)
    }

    /// Writes one tombstone.
    pub fn delete(&self, space: Space, key: &[u8], version: Version) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.delete(space, key, version)?;
        self.write_batch(batch)
    }

    /// Writes a batch on this thread, slowing down (and at the limit waiting) with the backlog.
    pub fn write_batch(&self, batch: Batch) -> Result<(), Error> {
        match self.pressure() {
            Pressure::Clear => {}
            Pressure::Slow(delay) => SLOWED.during(|| std::thread::sleep(delay)),
            Pressure::Full => self.wait_for_room()?,
        }
        self.commit(batch)
    }

    fn wait_for_room(&self) -> Result<(), Error> {
        let full = || self.shared.engine.backlog() == Backlog::Full;
        let settled = || !full() || !matches!(self.refusal(), Error::Busy { .. });
        self.shared.signals.room.wait_until(MAX_WAIT_FOR_ROOM, settled);
        if full() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Why writes are refused while the pressure is [`Pressure::Full`]: the store has failed, the
    /// disk has no room for the tables that would make some, or it is just busy.
    pub fn refusal(&self) -> Error {
        if let Err(failed) = self.shared.engine.healthy() {
            failed
        } else if self.shared.signals.starved() {
            self.shared.signals.no_room_for("tables")
        } else {
            Error::Busy { what: "flush or compaction backlog is too large" }
        }
    }

    /// Whether the disk had no room for what was to be written last, be it for tables or for more
    /// of the log: writes are refused, or will be soon.
    pub fn lacks_space(&self) -> bool {
        self.shared.signals.lacks_space()
    }

    /// Writes a batch on this thread without regard to the backlog: for event loops, which ask
    /// [`Db::pressure`] first. Waits for the log only.
    pub fn commit(&self, batch: Batch) -> Result<(), Error> {
        self.shared.commit(batch)
    }

    /// Queues a batch and returns at once; `done` is called from the committing thread when the
    /// batch is as durable as [`SyncMode`] says and visible, or refused. It must not block.
    pub fn submit(&self, batch: Batch, done: impl FnOnce(Result<(), Error>) + Send + 'static) {
        self.shared.submit(batch, Box::new(done));
    }

    /// How far flushes and compactions are behind.
    pub fn pressure(&self) -> Pressure {
        match self.shared.engine.backlog() {
            Backlog::Clear => Pressure::Clear,
            Backlog::Behind(part) => {
                self.shared.queue.count_slowed();
                Pressure::Slow(MAX_SLOWDOWN.mul_f64(part * part))
            }
            Backlog::Full => {
                self.shared.queue.count_refused();
                Pressure::Full
            }
        }
    }

    /// A point-in-time view. Pins memory: keep it short.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.engine.snapshot()
    }

    /// A scan over a snapshot taken now; see [`Snapshot::scan`].
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        self.snapshot().scan(space, start, end)
    }

    /// Moves all memtables into tables and waits for it.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.engine.rotate_all();
        self.shared.flush_all()
    }

    /// Flushes, then compacts every tree into its deepest level, and waits for it.
    pub fn compact(&self) -> Result<(), Error> {
        self.flush()?;
        self.shared.engine.compact_all()?;
        self.shared.signals.room.notify();
        Ok(())
    }

    /// Has the compaction thread do the same, in turns with what is due by itself. Returns the
    /// number of that compaction: if one is under way, it is that one.
    pub fn ask_to_compact(&self) -> u64 {
        self.ask_for(Compactions::ask)
    }

    /// The same, but never one that is under way by now: it may have passed what this is asked for.
    /// If one is, this is the number of the one after it.
    pub fn ask_to_compact_anew(&self) -> u64 {
        self.ask_for(Compactions::ask_anew)
    }

    fn ask_for(&self, ask: fn(&mut Compactions, Moment, u64) -> u64) -> u64 {
        let (now, bytes) = (whole::now(self.shared.opened), self.shared.engine.table_bytes());
        let number = ask(&mut self.shared.compactions.lock(), now, bytes);
        self.shared.signals.compaction.notify();
        number
    }

    /// Whether the compaction of this number, or one after it, came to its end; `None` = neither
    /// has ended.
    pub fn has_compacted(&self, number: u64) -> Option<bool> {
        self.shared.compactions.lock().has_done(number)
    }

    /// The compaction under way that was asked for, and the last one that ended.
    pub fn compactions(&self) -> (Option<Compaction>, Option<Compaction>) {
        let compactions = self.shared.compactions.lock();
        (compactions.current().cloned(), compactions.last().cloned())
    }

    /// Fails if the store accepts no more writes. Costs one load, unlike [`Db::stats`].
    pub fn health(&self) -> Result<(), Error> {
        self.shared.engine.healthy()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.engine.stats();
        self.shared.queue.fill(&mut stats);
        self.shared.times.fill(&mut stats);
        stats
    }

    /// Whether flushes and compactions have nothing left to do.
    pub fn is_idle(&self) -> bool {
        self.shared.engine.is_idle()
    }

    /// Stops background work, moves all memtables into tables, so that the next opening has
    /// nothing to replay, and says whether that worked. Dropping does the same and can't say.
    pub fn close(mut self) -> Result<(), Error> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), Error> {
        let Some(threads) = self.threads.take() else { return Ok(()) };
        self.shared.engine.begin_closing();
        threads.stop(&self.shared);
        // What readers let go of last; the next open would have to do it.
        self.shared.engine.delete_obsolete_tables();
        self.shared.engine.close()
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "cannot close the log; recovery will read it as it is");
        }
    }
}

/// How often an interval sync is due, if at all.
fn sync_interval(options: &Options) -> Option<Duration> {
    match options.sync {
        SyncMode::Interval(interval) => Some(interval),
        SyncMode::Always | SyncMode::Never => None,
    }
}
