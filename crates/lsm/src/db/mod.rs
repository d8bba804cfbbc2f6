//! The store's public interface: the engine, the group commit queue, and the threads that flush,
//! compact and maintain the log.
//!
//! ```text
//!  put, write_batch, commit ──▶ ┌ commit queue ┐ ──▶ engine.commit, by the leader:
//!  submit (never waits) ──────▶ └──────────────┘     a waiting caller, or the commit thread
//!  background ─────────────────────────────────────────▶ flush thread: engine.flush_one
//!                                                        compaction thread: engine.compact_one
//!                                                        log thread: next segment, interval sync
//! ```

mod commit;
mod compaction_steps;
#[cfg(test)]
mod tests;
mod threads;
mod times;
mod warning_limiter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use commit::CommitQueue;
use parking_lot::Mutex;
use profile::{WaitKind, WaitSite};
use threads::{Signals, Threads};
use times::WorkDurations;
use warning_limiter::WarningLimiter;

use crate::batch::{Batch, Space};
use crate::disk::Disk;
use crate::engine::{Backlog, Engine, Scan, Snapshot};
use crate::error::Error;
use crate::options::{Options, SyncMode};
use crate::requested_compactions::{Compaction, Moment, RequestedCompactions};
use crate::stats::Stats;
use record::{Record, Version};

/// Backpressure on writes from the flush and compaction backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    /// Writes need no delay.
    Clear,
    /// Delay the next write by this long.
    Slow(Duration),
    /// Refuse writes for now.
    Full,
}

/// Longest delay of one write, reached as the backlog nears its limit. The delay grows with the
/// square of the backlog, so that a small backlog hardly delays writes.
const MAX_SLOWDOWN: Duration = Duration::from_millis(20);
/// Longest wait of [`Db::write_batch`] for a smaller backlog, after which the write fails.
const MAX_WAIT_FOR_ROOM: Duration = Duration::from_secs(60);

/// Wait site of delayed writes in profiles.
static SLOWED: WaitSite =
    WaitSite::new(WaitKind::Queue, "writes: slowed by flush or compaction backlog");

/// A store, shareable by reference or `Arc`. Dropping the store stops its threads.
pub struct Db {
    shared: Arc<Shared>,
    threads: Option<Threads>,
}

/// State shared by the threads and the callers.
struct Shared {
    engine: Engine,
    queue: CommitQueue,
    signals: Signals,
    times: WorkDurations,
    compactions: Mutex<RequestedCompactions>,
    warnings: WarningLimiter,
    opened: Instant,
}

impl Db {
    /// Opens the store on `disk`: creates a store on an empty disk, recovers an existing store
    /// otherwise.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        let engine = Engine::open(disk, options)?;
        let (queue, signals, times) =
            (CommitQueue::new(), Signals::default(), WorkDurations::new());
        let (compactions, opened) = (Mutex::default(), Instant::now());
        let warnings = WarningLimiter::default();
        let shared = Shared { engine, queue, signals, times, compactions, warnings, opened };
        let shared = Arc::new(shared);
        let threads = Threads::start(&shared)?;
        Ok(Self { shared, threads: Some(threads) })
    }

    /// The engine below the threads, for reads. A commit through the engine would bypass the group
    /// commit.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Returns the newest record of `key`, which may be a tombstone; `None` = there is no record.
    /// May block on disk reads.
    pub fn get(&self, space: Space, key: &[u8]) -> Result<Option<Record>, Error> {
        self.shared.engine.read(space, key)
    }

    /// Writes one value; returns once it is as durable as [`SyncMode`] requires.
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

    /// Writes one tombstone; returns once it is as durable as [`SyncMode`] requires.
    pub fn delete(&self, space: Space, key: &[u8], version: Version) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.delete(space, key, version)?;
        self.write_batch(batch)
    }

    /// Writes a batch, and blocks until it is committed. Delays the write by up to 20 ms while the
    /// backlog is large. At the backlog's limit, waits for up to 60 s, then returns
    /// [`Db::refusal`].
    pub fn write_batch(&self, batch: Batch) -> Result<(), Error> {
        match self.pressure() {
            Pressure::Clear => {}
            Pressure::Slow(delay) => SLOWED.during(|| std::thread::sleep(delay)),
            Pressure::Full => self.wait_while_full()?,
        }
        self.commit(batch)
    }

    fn wait_while_full(&self) -> Result<(), Error> {
        let full = || self.shared.engine.backlog() == Backlog::Full;
        let settled = || !full() || !matches!(self.refusal(), Error::Busy { .. });
        self.shared.signals.room.wait_until(MAX_WAIT_FOR_ROOM, settled);
        if full() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Reason why writes are refused at [`Pressure::Full`]: the store has failed, the disk has no
    /// space for tables that would reduce the backlog, or the store is busy.
    pub fn refusal(&self) -> Error {
        if let Err(failed) = self.shared.engine.check_health() {
            failed
        } else if self.shared.signals.is_starved() {
            self.shared.signals.space_error("tables")
        } else {
            Error::Busy { what: "flush or compaction backlog is too large" }
        }
    }

    /// Returns true if the disk lacked space for the last flush, compaction or log segment. Writes
    /// are refused, or will be soon.
    pub fn lacks_space(&self) -> bool {
        self.shared.signals.lacks_space()
    }

    /// Writes a batch regardless of the backlog, for event loops that check [`Db::pressure`] first.
    /// Blocks only on the log.
    pub fn commit(&self, batch: Batch) -> Result<(), Error> {
        self.shared.commit(batch)
    }

    /// Queues a batch and returns at once. The committing thread calls `done` when the batch is
    /// visible and as durable as [`SyncMode`] requires, or has failed. `done` must not block.
    pub fn submit(&self, batch: Batch, done: impl FnOnce(Result<(), Error>) + Send + 'static) {
        self.shared.submit(batch, Box::new(done));
    }

    /// Returns the current backpressure. Call it once per write: the statistics count each
    /// [`Pressure::Slow`] as a slowed write and each [`Pressure::Full`] as a refused one.
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

    /// A point-in-time view. A snapshot pins memtables and tables, so it should be short-lived.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.engine.snapshot()
    }

    /// Scans a new snapshot; see [`Snapshot::scan`].
    pub fn scan(&self, space: Space, start: &[u8], end: Option<&[u8]>) -> Scan {
        self.snapshot().scan(space, start, end)
    }

    /// Writes all memtables to tables, and returns when all are written.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.engine.rotate_all();
        self.shared.flush_all()
    }

    /// Flushes, then compacts every tree into its deepest level, and returns when both are done.
    pub fn compact(&self) -> Result<(), Error> {
        self.flush()?;
        self.shared.engine.compact_all()?;
        self.shared.signals.room.notify();
        Ok(())
    }

    /// Requests a compaction of the whole store from the compaction thread, which alternates it
    /// with regular compactions. Returns the number of the compaction, which may already be in
    /// progress.
    pub fn request_compaction(&self) -> u64 {
        self.request_with(RequestedCompactions::request)
    }

    /// Requests a compaction of the whole store that starts after this call: a compaction in
    /// progress may already have passed the data in question. Returns the number of the requested
    /// compaction.
    pub fn request_compaction_anew(&self) -> u64 {
        self.request_with(RequestedCompactions::request_anew)
    }

    fn request_with(&self, request: fn(&mut RequestedCompactions, Moment, u64) -> u64) -> u64 {
        let (now, bytes) =
            (compaction_steps::now(self.shared.opened), self.shared.engine.table_bytes());
        let number = request(&mut self.shared.compactions.lock(), now, bytes);
        self.shared.signals.compaction.notify();
        number
    }

    /// Outcome of the last completed compaction, if its number is at least `number`: true =
    /// success, false = failure. `None` = no compaction with such a number has ended.
    pub fn compaction_succeeded(&self, number: u64) -> Option<bool> {
        self.shared.compactions.lock().has_succeeded(number)
    }

    /// The requested compaction in progress, and the last one that ended.
    pub fn compactions(&self) -> (Option<Compaction>, Option<Compaction>) {
        let compactions = self.shared.compactions.lock();
        (compactions.current().cloned(), compactions.last().cloned())
    }

    /// Fails if the store rejects writes. Costs one load, unlike [`Db::stats`].
    pub fn health(&self) -> Result<(), Error> {
        self.shared.engine.check_health()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.engine.stats();
        self.shared.queue.fill_stats(&mut stats);
        self.shared.times.fill_stats(&mut stats);
        stats
    }

    /// Returns true if there is nothing left to flush or compact.
    pub fn is_idle(&self) -> bool {
        self.shared.engine.is_idle()
    }

    /// Stops background work and flushes all memtables, so that the next open has nothing to
    /// replay. Dropping the store does the same but cannot report errors.
    pub fn close(mut self) -> Result<(), Error> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), Error> {
        let Some(threads) = self.threads.take() else { return Ok(()) };
        self.shared.engine.begin_closing();
        threads.stop(&self.shared);
        // The last readers may just have released obsolete tables. If these were kept, the next
        // open would have to delete them.
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

/// Interval of the log's sync; `None` unless the mode is [`SyncMode::Interval`].
fn sync_interval(options: &Options) -> Option<Duration> {
    match options.sync {
        SyncMode::Interval(interval) => Some(interval),
        SyncMode::Always | SyncMode::Never => None,
    }
}
