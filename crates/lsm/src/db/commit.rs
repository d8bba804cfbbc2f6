//! Group commit. Batches are queued while one thread, the leader, commits. The next leader takes
//! all queued batches, so one write and one sync serve many callers.
//!
//! A caller of [`super::Db::commit`] becomes the leader if there is none. Otherwise it waits until
//! its batch is committed or it is appointed the next leader. If the first queued batch has no
//! waiting caller ([`super::Db::submit`]), the commit thread becomes the leader. There is exactly
//! one leader while a batch is queued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use profile::{WaitKind, WaitSite};

use super::Shared;
use crate::batch::Batch;
use crate::error::Error;
use crate::stats::Stats;

/// Maximum bytes of a group. Further batches wait for the next group; a longer batch forms a group
/// alone. Large enough that one sync serves many batches, small enough not to delay the next group.
const MAX_GROUP_BYTES: usize = 4 << 20;
/// Maximum bytes of queued batches; a batch that would exceed them is refused.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Wait sites for profiles.
static QUEUE: WaitSite = WaitSite::new(WaitKind::Lock, "commit queue");
static OTHER_LEADER: WaitSite = WaitSite::new(WaitKind::Queue, "commit: another caller leads");
static QUEUED: WaitSite =
    WaitSite::new(WaitKind::Queue, "commit: batches behind the one that is committed");
static NO_BATCH: WaitSite = WaitSite::new(WaitKind::Idle, "commit: no batch");

type CommitCallback = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// The submitter of a queued batch, which receives the result of the commit.
enum Submitter {
    /// A waiting thread.
    Waiter(Arc<Waiter>),
    /// A callback that receives the result.
    Callback(CommitCallback),
}

struct PendingBatch {
    batch: Batch,
    submitter: Submitter,
    /// Time of queueing; `None` unless a profile is being recorded.
    since: Option<Instant>,
}

/// State of a waiting caller.
enum WaiterState {
    Waiting,
    /// The waiter leads, starting with its own batch.
    Lead(Batch),
    Done(Result<(), Error>),
}

struct Waiter {
    state: Mutex<WaiterState>,
    changed: Condvar,
}

impl Waiter {
    fn set(&self, state: WaiterState) {
        *self.state.lock() = state;
        self.changed.notify_one();
    }

    fn wait(&self) -> WaiterState {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, WaiterState::Waiting) {
                WaiterState::Waiting => OTHER_LEADER.during(|| self.changed.wait(&mut state)),
                settled => return settled,
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<PendingBatch>,
    bytes: usize,
    /// True while a leader commits or has been appointed.
    has_leader: bool,
    /// True if the commit thread has been appointed leader.
    handed_to_thread: bool,
    closing: bool,
}

/// The group commit queue.
pub(super) struct CommitQueue {
    queue: profile::Mutex<Queue>,
    thread_wanted: Condvar,
    slowed: AtomicU64,
    refused: AtomicU64,
}

impl CommitQueue {
    pub(super) fn new() -> Self {
        Self {
            queue: profile::Mutex::new(&QUEUE, Queue::default()),
            thread_wanted: Condvar::new(),
            slowed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn count_slowed(&self) {
        self.slowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fill_stats(&self, stats: &mut Stats) {
        let queue = self.lock();
        stats.commit_queue_batches = queue.pending.len() as u64;
        stats.commit_queue_bytes = queue.bytes as u64;
        stats.slowed_writes = self.slowed.load(Ordering::Relaxed);
        stats.refused_writes = self.refused.load(Ordering::Relaxed);
    }

    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Waits until the commit thread is appointed leader; `false` = the store is closing.
    pub(super) fn wait_for_lead(&self) -> bool {
        let mut queue = self.lock();
        loop {
            if queue.handed_to_thread {
                queue.handed_to_thread = false;
                return true;
            }
            if queue.closing {
                return false;
            }
            NO_BATCH.during(|| self.thread_wanted.wait(&mut queue));
        }
    }

    /// Makes the queue refuse further batches. The commit thread ends once the queue is empty.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.thread_wanted.notify_all();
    }

    /// Appoints the next leader: the waiting thread of the first queued batch, or the commit thread
    /// if that batch has a callback. Without a queued batch, there is no leader afterwards.
    fn pass_lead(&self, mut queue: MutexGuard<'_, Queue>) {
        match queue.pending.front() {
            None => queue.has_leader = false,
            Some(PendingBatch { submitter: Submitter::Callback(_), .. }) => {
                queue.handed_to_thread = true;
                self.thread_wanted.notify_all();
            }
            Some(PendingBatch { submitter: Submitter::Waiter(_), .. }) => {
                let Some(PendingBatch { batch, submitter: Submitter::Waiter(waiter), .. }) =
                    queue.pending.pop_front()
                else {
                    unreachable!("just looked at");
                };
                queue.bytes -= batch.byte_len();
                drop(queue);
                waiter.set(WaiterState::Lead(batch));
            }
        }
    }

    /// Removes the batches of the next group from the queue. `own` is the length in bytes of the
    /// leader's batch, which counts toward the group's limit; 0 = the leader has no batch.
    fn take_group(&self, own: usize) -> Vec<PendingBatch> {
        let mut queue = self.lock();
        let mut bytes = own;
        let mut group = Vec::new();
        while let Some(next) = queue.pending.front() {
            bytes += next.batch.byte_len();
            if bytes > MAX_GROUP_BYTES && (own > 0 || !group.is_empty()) {
                break;
            }
            let next = queue.pending.pop_front().expect("just looked at");
            queue.bytes -= next.batch.byte_len();
            group.push(next);
        }
        drop(queue);
        for pending in &group {
            QUEUED.waited_since(pending.since);
        }
        group
    }
}

impl Queue {
    fn admit(&self, batch: &Batch) -> Result<(), Error> {
        if self.closing {
            return Err(Error::Closing);
        }
        if self.bytes + batch.byte_len() > MAX_QUEUED_BYTES {
            return Err(Error::Busy { what: "the commit queue is full" });
        }
        Ok(())
    }
}

impl Shared {
    pub(super) fn commit(&self, batch: Batch) -> Result<(), Error> {
        let mut queue = self.queue.lock();
        queue.admit(&batch)?;
        if !queue.has_leader {
            queue.has_leader = true;
            drop(queue);
            return self.lead_commit(batch);
        }
        let waiter =
            Arc::new(Waiter { state: Mutex::new(WaiterState::Waiting), changed: Condvar::new() });
        queue.bytes += batch.byte_len();
        let submitter = Submitter::Waiter(Arc::clone(&waiter));
        queue.pending.push_back(PendingBatch { batch, submitter, since: profile::queued() });
        drop(queue);
        match waiter.wait() {
            WaiterState::Done(outcome) => outcome,
            WaiterState::Lead(batch) => self.lead_commit(batch),
            WaiterState::Waiting => unreachable!("waited for a turn"),
        }
    }

    pub(super) fn submit(&self, batch: Batch, done: CommitCallback) {
        let mut queue = self.queue.lock();
        if let Err(refused) = queue.admit(&batch) {
            drop(queue);
            return done(Err(refused));
        }
        queue.bytes += batch.byte_len();
        let submitter = Submitter::Callback(done);
        queue.pending.push_back(PendingBatch { batch, submitter, since: profile::queued() });
        if !queue.has_leader {
            queue.has_leader = true;
            queue.handed_to_thread = true;
            drop(queue);
            self.queue.thread_wanted.notify_all();
        }
    }

    /// Commits the caller's batch together with queued batches, and passes the lead on.
    fn lead_commit(&self, own: Batch) -> Result<(), Error> {
        let group = self.queue.take_group(own.byte_len());
        let batches = std::iter::once(&own).chain(group.iter().map(|pending| &pending.batch));
        let outcome = self.times.commit(|| self.engine.commit(batches));
        self.finish_group(group, outcome)
    }

    /// Commits a group on the commit thread, which has no batch of its own.
    pub(super) fn lead_commit_from_thread(&self) {
        let group = self.queue.take_group(0);
        let batches = group.iter().map(|pending| &pending.batch);
        let outcome = self.times.commit(|| self.engine.commit(batches));
        // `finish_group` has informed every caller.
        let _ = self.finish_group(group, outcome);
    }

    fn finish_group(
        &self,
        group: Vec<PendingBatch>,
        outcome: Result<crate::engine::CommitEffects, Error>,
    ) -> Result<(), Error> {
        self.queue.pass_lead(self.queue.lock());
        if let Ok(committed) = &outcome {
            self.signals.notify_workers(committed);
        }
        let outcome = outcome.map(|_| ());
        for pending in group {
            match pending.submitter {
                Submitter::Waiter(waiter) => waiter.set(WaiterState::Done(outcome.clone())),
                Submitter::Callback(done) => done(outcome.clone()),
            }
        }
        outcome
    }
}
