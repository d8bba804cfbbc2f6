//! One loop's writes. All writes of one loop iteration are one batch of the store. A `PendingBatch`
//! is the list of its waiting writes.
//!
//! ```text
//!  writes of an iteration ─▶ one batch ─▶ committer: a task that runs after these writes
//!
//!  --sync always     the committer passes the batch to kv-commit, which syncs the log and wakes
//!                    the loop once; the loop then calls the sink for each write
//!  other sync modes  the committer writes the batch itself, then calls the sink for each write
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use lsm::{Batch, Db, Pressure, SyncMode};
use parking_lot::MutexGuard;
use profile::{WaitKind, WaitSite};
use server::{Outcome, WriteError};

use crate::counters::Counters;

/// Size in bytes at which a batch is committed before the end of the iteration.
const BATCH_BYTES: usize = 1 << 20;

/// Receives the outcome of each write.
pub(crate) type OutcomeSink<T> = Box<dyn Fn(T, &Outcome)>;

/// The waiting writes of one batch, and the batch's size.
#[derive(Debug)]
struct PendingBatch<T> {
    bytes: usize,
    waiting: Vec<T>,
}

/// Places where writes wait, with their names in profiles.
static ARRIVALS: WaitSite = WaitSite::new(WaitKind::Lock, "writes: outcome lock");
static SLOWED: WaitSite =
    WaitSite::new(WaitKind::Queue, "writes: slowed by flush or compaction backlog");

/// Outcomes that `kv-commit` passes to the loop.
#[derive(Debug)]
struct Arrivals {
    inner: profile::Mutex<ArrivedOutcomes>,
}

#[derive(Debug, Default)]
struct ArrivedOutcomes {
    outcomes: Vec<(u64, Result<(), lsm::Error>)>,
    loop_waker: Option<Waker>,
}

impl Arrivals {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, ArrivedOutcomes> {
        self.inner.lock()
    }
}

/// The writes of one loop. `T` identifies a write to the sink.
pub(crate) struct Writes<T> {
    db: Arc<Db>,
    counters: Arc<Counters>,
    commits_on_loop: bool,
    /// Limit on the bytes of writes that wait for the store.
    bound: usize,
    sink: OutcomeSink<T>,
    collecting: RefCell<CollectedBatch<T>>,
    in_flight: RefCell<VecDeque<(u64, PendingBatch<T>)>>,
    submitted: Cell<u64>,
    waiting_bytes: Cell<usize>,
    arrivals: Arc<Arrivals>,
}

struct CollectedBatch<T> {
    batch: Batch,
    pending: Option<PendingBatch<T>>,
    /// An empty list of waiting writes, kept for reuse.
    spare: Vec<T>,
    /// Time by which the store delays the batch.
    delay: Duration,
    committer: Option<Waker>,
}

/// True if the loop itself writes batches to the log. If each batch waits for a sync, a thread
/// writes them. Otherwise the transfer to the thread and back would cost more than the `write`
/// itself.
fn commits_on_loop(sync: SyncMode) -> bool {
    !matches!(sync, SyncMode::Always)
}

impl<T> Writes<T> {
    /// Creates an empty queue. `bound` is in bytes, but a write of any size is accepted if no other
    /// write waits. `sink` is called once for each accepted write, and may add further writes.
    pub(crate) fn new(
        db: Arc<Db>,
        counters: Arc<Counters>,
        sync: SyncMode,
        bound: usize,
        sink: OutcomeSink<T>,
    ) -> Self {
        let (batch, delay) = (Batch::new(), Duration::ZERO);
        Self {
            db,
            counters,
            commits_on_loop: commits_on_loop(sync),
            bound,
            sink,
            collecting: RefCell::new(CollectedBatch {
                batch,
                pending: None,
                spare: Vec::new(),
                delay,
                committer: None,
            }),
            in_flight: RefCell::default(),
            submitted: Cell::new(0),
            waiting_bytes: Cell::new(0),
            arrivals: Arc::new(Arrivals {
                inner: profile::Mutex::new(&ARRIVALS, ArrivedOutcomes::default()),
            }),
        }
    }

    /// Adds the records that `write` puts into the current batch. `bytes` is their approximate
    /// size. After an error, `waits_for` is dropped, and the sink is not called for it.
    pub(crate) fn add(
        &self,
        bytes: usize,
        waits_for: T,
        write: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Outcome {
        let waiting = self.waiting_bytes.get();
        if waiting > 0 && waiting + bytes > self.bound {
            return Err(WriteError::Busy);
        }
        let delay = match self.db.pressure() {
            Pressure::Clear => Duration::ZERO,
            Pressure::Slow(delay) => delay,
            Pressure::Full => return Err(self.db.refusal().into()),
        };
        let mut held = self.collecting.borrow_mut();
        let collecting = &mut *held;
        collecting.delay = delay;
        write(&mut collecting.batch).map_err(WriteError::Store)?;
        let spare = &mut collecting.spare;
        let new = || PendingBatch { bytes: 0, waiting: mem::take(spare) };
        let pending = collecting.pending.get_or_insert_with(new);
        pending.bytes += bytes;
        pending.waiting.push(waits_for);
        self.set_waiting(waiting + bytes);
        if collecting.batch.byte_len() >= BATCH_BYTES {
            drop(held);
            self.commit();
        } else if let Some(committer) = collecting.committer.take() {
            committer.wake();
        }
        Ok(())
    }

    fn set_waiting(&self, bytes: usize) {
        self.waiting_bytes.set(bytes);
        self.counters.waiting_bytes.set(bytes as u64);
    }

    /// Commits each iteration's batch, after all requests that were ready in the iteration. Never
    /// ends.
    pub(crate) async fn commit_batches(&self) {
        loop {
            let delay = poll_fn(|cx| {
                let mut collecting = self.collecting.borrow_mut();
                if collecting.pending.is_some() {
                    return Poll::Ready(collecting.delay);
                }
                collecting.committer = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            if !delay.is_zero() {
                self.counters.slowdown_nanos.add(delay.as_nanos() as u64);
                let since = profile::queued();
                tokio::time::sleep(delay).await;
                SLOWED.waited_since(since);
            }
            self.commit();
        }
    }

    fn commit(&self) {
        let (batch, pending) = {
            let mut collecting = self.collecting.borrow_mut();
            let Some(pending) = collecting.pending.take() else { return };
            (mem::take(&mut collecting.batch), pending)
        };
        self.counters.batches.add(1);
        self.counters.batched_writes.add(batch.len() as u64);
        // A batch that needs a sync would block the loop.
        if self.commits_on_loop && !batch.forces_sync() {
            let outcome = self.db.commit(batch).map_err(WriteError::Store);
            self.finish(pending, &outcome);
            return;
        }
        let number = self.submitted.get();
        self.submitted.set(number + 1);
        self.in_flight.borrow_mut().push_back((number, pending));
        let arrivals = Arc::clone(&self.arrivals);
        self.db.submit(batch, move |result| {
            let mut arrived = arrivals.lock();
            arrived.outcomes.push((number, result));
            let waker = arrived.loop_waker.take();
            drop(arrived);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
    }

    /// Receives the outcomes of `kv-commit`. Never ends.
    pub(crate) async fn take_outcomes(&self) {
        let mut outcomes = Vec::new();
        loop {
            poll_fn(|cx| {
                let mut arrived = self.arrivals.lock();
                if arrived.outcomes.is_empty() {
                    arrived.loop_waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                mem::swap(&mut outcomes, &mut arrived.outcomes);
                Poll::Ready(())
            })
            .await;
            for (number, result) in outcomes.drain(..) {
                let done = {
                    let mut in_flight = self.in_flight.borrow_mut();
                    let place = in_flight.iter().position(|(n, _)| *n == number);
                    let place = place.expect("each batch is answered once");
                    in_flight.remove(place).map(|(_, pending)| pending)
                };
                if let Some(pending) = done {
                    self.finish(pending, &result.map_err(WriteError::Store));
                }
            }
        }
    }

    fn finish(&self, mut pending: PendingBatch<T>, outcome: &Outcome) {
        self.set_waiting(self.waiting_bytes.get() - pending.bytes);
        for waits_for in pending.waiting.drain(..) {
            (self.sink)(waits_for, outcome);
        }
        self.collecting.borrow_mut().spare = pending.waiting;
    }
}

#[cfg(test)]
mod tests;
