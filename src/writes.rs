//! One loop's writes: those of one turn of the loop become one batch of the store.
//!
//! ```text
//!  requests of a turn ─▶ batch ─▶ committer (runs after them) ─┬─ on the loop: one `write`
//!                                                              └─ always: to the log's thread,
//!  every request of the batch ◀── one wake-up ◀────────────────── which syncs and calls back
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lsm::{Batch, Db, Pressure, SyncMode};

use crate::counters::Counters;

/// A batch of this many bytes is committed without waiting for the end of the turn.
const BATCH_BYTES: usize = 1 << 20;

/// Why a write is not known to be stored.
#[derive(Debug, Clone)]
pub(crate) enum WriteError {
    /// Not tried: too many bytes wait for the log, or flushes and compactions are too far behind.
    Busy,
    /// Neither done nor refused in time. It may still be done.
    Deadline,
    /// The store could not.
    Store(lsm::Error),
}

type Outcome = Result<(), WriteError>;

/// A batch and who waits for it.
#[derive(Debug)]
struct Turn {
    /// Tick at which it began.
    begun: u32,
    bytes: Cell<usize>,
    outcome: RefCell<Option<Outcome>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Turn {
    fn finish(&self, outcome: Outcome) {
        self.outcome.borrow_mut().get_or_insert(outcome);
        for waker in self.waiting.borrow_mut().drain(..) {
            waker.wake();
        }
    }
}

/// Resolves when the batch with one's write is stored, or is known not to be.
#[derive(Debug)]
pub(crate) struct Written {
    turn: Rc<Turn>,
    place: Option<usize>,
}

impl Future for Written {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = self.turn.outcome.borrow().as_ref() {
            return Poll::Ready(outcome.clone());
        }
        let turn = Rc::clone(&self.turn);
        let mut waiting = turn.waiting.borrow_mut();
        match self.place {
            Some(place) => waiting[place].clone_from(cx.waker()),
            None => {
                self.place = Some(waiting.len());
                waiting.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }
}

/// Outcomes on their way from the log's thread to the loop.
#[derive(Debug, Default)]
struct Arrivals {
    inner: Mutex<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    outcomes: Vec<(u64, Result<(), lsm::Error>)>,
    loop_waker: Option<Waker>,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writes of one loop.
pub(crate) struct Writes {
    db: Arc<Db>,
    counters: Arc<Counters>,
    commits_on_loop: bool,
    /// Bytes that may wait for the store.
    bound: usize,
    deadline_ticks: u32,
    now: Rc<Cell<u32>>,
    collecting: RefCell<Collecting>,
    in_flight: RefCell<VecDeque<(u64, Rc<Turn>)>>,
    submitted: Cell<u64>,
    waiting_bytes: Cell<usize>,
    arrivals: Arc<Arrivals>,
}

#[derive(Default)]
struct Collecting {
    batch: Batch,
    turn: Option<Rc<Turn>>,
    /// How long the store wants the batch held back.
    delay: Duration,
    committer: Option<Waker>,
}

/// What a loop's writes are bounded by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes that may wait for the store; one write is always taken when none waits.
    pub(crate) waiting_bytes: usize,
    /// Ticks after which a write is answered although it is not done.
    pub(crate) deadline_ticks: u32,
}

/// A batch that waits for no sync is written where it was collected: handing it to another thread
/// and back costs more than the `write` itself.
fn commits_on_loop(sync: SyncMode) -> bool {
    !matches!(sync, SyncMode::Always)
}

impl Writes {
    /// No writes yet. `now` is the loop's tick.
    pub(crate) fn new(
        db: Arc<Db>,
        counters: Arc<Counters>,
        sync: SyncMode,
        limits: Limits,
        now: Rc<Cell<u32>>,
    ) -> Self {
        Self {
            db,
            counters,
            commits_on_loop: commits_on_loop(sync),
            bound: limits.waiting_bytes,
            deadline_ticks: limits.deadline_ticks,
            now,
            collecting: RefCell::default(),
            in_flight: RefCell::default(),
            submitted: Cell::new(0),
            waiting_bytes: Cell::new(0),
            arrivals: Arc::default(),
        }
    }

    /// Adds what `write` puts into the batch of this turn; `bytes` is about how much that is.
    pub(crate) fn add(
        &self,
        bytes: usize,
        write: impl FnOnce(&mut Batch) -> Result<(), lsm::Error>,
    ) -> Result<Written, WriteError> {
        let waiting = self.waiting_bytes.get();
        if waiting > 0 && waiting + bytes > self.bound {
            return Err(WriteError::Busy);
        }
        let delay = match self.db.pressure() {
            Pressure::Clear => Duration::ZERO,
            Pressure::Slow(delay) => delay,
            Pressure::Full => {
                return Err(match self.db.refusal() {
                    lsm::Error::Busy { .. } => WriteError::Busy,
                    // A full disk or a failed one, which the client is to be told apart.
                    refusal => WriteError::Store(refusal),
                });
            }
        };
        let mut collecting = self.collecting.borrow_mut();
        collecting.delay = delay;
        write(&mut collecting.batch).map_err(WriteError::Store)?;
        let turn = collecting.turn.get_or_insert_with(|| {
            Rc::new(Turn {
                begun: self.now.get(),
                bytes: Cell::new(0),
                outcome: RefCell::new(None),
                waiting: RefCell::new(Vec::new()),
            })
        });
        turn.bytes.set(turn.bytes.get() + bytes);
        let written = Written { turn: Rc::clone(turn), place: None };
        self.set_waiting(waiting + bytes);
        if collecting.batch.byte_len() >= BATCH_BYTES {
            drop(collecting);
            self.commit();
        } else if let Some(committer) = collecting.committer.take() {
            committer.wake();
        }
        Ok(written)
    }

    fn set_waiting(&self, bytes: usize) {
        self.waiting_bytes.set(bytes);
        self.counters.waiting_bytes.set(bytes as u64);
    }

    /// Commits each turn's batch after the requests that were ready in that turn. Never ends.
    pub(crate) async fn commit_turns(&self) {
        loop {
            let delay = poll_fn(|cx| {
                let mut collecting = self.collecting.borrow_mut();
                if collecting.turn.is_some() {
                    return Poll::Ready(collecting.delay);
                }
                collecting.committer = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            self.commit();
        }
    }

    fn commit(&self) {
        let (batch, turn) = {
            let mut collecting = self.collecting.borrow_mut();
            let Some(turn) = collecting.turn.take() else { return };
            (mem::take(&mut collecting.batch), turn)
        };
        self.counters.batches.add(1);
        self.counters.batched_writes.add(batch.len() as u64);
        if self.commits_on_loop {
            let outcome = self.db.commit(batch).map_err(WriteError::Store);
            self.finish(&turn, outcome);
            return;
        }
        let number = self.submitted.get();
        self.submitted.set(number + 1);
        self.in_flight.borrow_mut().push_back((number, turn));
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

    /// Takes in what the log's thread has done. Never ends.
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
                let turn = {
                    let mut in_flight = self.in_flight.borrow_mut();
                    let place = in_flight.iter().position(|(n, _)| *n == number);
                    let place = place.expect("each batch is answered once");
                    in_flight.remove(place).map(|(_, turn)| turn)
                };
                if let Some(turn) = turn {
                    self.finish(&turn, result.map_err(WriteError::Store));
                }
            }
        }
    }

    fn finish(&self, turn: &Turn, outcome: Outcome) {
        self.set_waiting(self.waiting_bytes.get() - turn.bytes.get());
        turn.finish(outcome);
    }

    /// Answers those whose time is up. Their bytes count until the store is done with them.
    pub(crate) fn sweep(&self) {
        let now = self.now.get();
        let late = |turn: &Turn| now.wrapping_sub(turn.begun) > self.deadline_ticks;
        for (_, turn) in self.in_flight.borrow().iter().take_while(|(_, turn)| late(turn)) {
            turn.finish(Err(WriteError::Deadline));
        }
        if let Some(turn) = self.collecting.borrow().turn.as_ref().filter(|turn| late(turn)) {
            turn.finish(Err(WriteError::Deadline));
        }
    }
}

#[cfg(test)]
mod tests;
