//! The store's threads: `kv-commit` commits the batches that no caller waits for; `kv-flush`,
//! `kv-compact` and `kv-log` execute engine steps. Each thread waits for its signal, works until no
//! work is left, and waits again. Unless the backlog is large, the threads that execute engine
//! steps yield the CPU to threads that serve requests (`YieldBudget` in the engine).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use profile::{WaitKind, WaitSite};

use super::{Shared, sync_interval};
use crate::engine::{CommitEffects, StepOutcome};
use crate::error::{Error, IoOp};

/// Longest delay before the retry of a failed step.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Interval between checks that the store's directory still exists. A check makes three system
/// calls and reads no data. Once the directory is deleted, writes to its unlinked files are
/// acknowledged for at most one interval.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Longest rest of the compaction thread after a step of a requested compaction.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Wait sites for profiles.
static NO_WORK: WaitSite =
    WaitSite::new(WaitKind::Idle, "store: nothing to flush, compact or prepare");
static NO_ROOM: WaitSite =
    WaitSite::new(WaitKind::Queue, "writes: stalled by flush or compaction backlog");

/// A flag with a condition variable. Setting the flag wakes the waiting threads.
#[derive(Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn notify(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until the signal is raised, for at most `at_most`, and clears the signal.
    fn wait(&self, at_most: Duration) {
        let mut raised = self.raised.lock();
        NO_WORK.during(|| self.changed.wait_while_for(&mut raised, |raised| !*raised, at_most));
        *raised = false;
    }

    /// Waits until `condition` is true; returns false if it is still false after `at_most`.
    pub(super) fn wait_until(&self, at_most: Duration, condition: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + at_most;
        let mut raised = self.raised.lock();
        loop {
            if condition() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // The condition may change between the check and the wait without a notification, so
            // the wait is short.
            NO_ROOM.during(|| self.changed.wait_for(&mut raised, left.min(RETRY_AFTER)));
        }
    }
}

/// Signals and states of the background threads.
#[derive(Default)]
pub(super) struct Signals {
    flush: Signal,
    pub(super) compaction: Signal,
    log: Signal,
    /// Notified after each flush or compaction.
    pub(super) room: Signal,
    /// True if the last flush failed for lack of disk space.
    flush_starved: AtomicBool,
    compaction_starved: AtomicBool,
    /// True if the last failure of a flush or compaction for lack of space was caused by the
    /// process's file size limit.
    over_file_limit: AtomicBool,
    /// True if the last attempt to prepare a log segment failed for lack of disk space.
    log_starved: AtomicBool,
    stopping: AtomicBool,
}

impl Signals {
    pub(super) fn notify_workers(&self, committed: &CommitEffects) {
        if committed.rotated {
            self.flush.notify();
        }
        if committed.segment_activated {
            self.log.notify();
        }
    }

    /// Returns true if a flush or compaction waits for disk space.
    pub(super) fn is_starved(&self) -> bool {
        self.flush_starved.load(Ordering::Relaxed)
            || self.compaction_starved.load(Ordering::Relaxed)
    }

    /// The error for the lack of space that stopped background work.
    pub(super) fn space_error(&self, what: &'static str) -> Error {
        match self.over_file_limit.load(Ordering::Relaxed) {
            true => Error::OverFileLimit { what },
            false => Error::NoSpace { what },
        }
    }

    /// Returns true if background work or the log waits for disk space.
    pub(super) fn lacks_space(&self) -> bool {
        self.is_starved() || self.log_starved.load(Ordering::Relaxed)
    }

    /// Records the outcome of a step, and wakes threads that wait for the backlog to shrink.
    fn after_step(&self, starved: &AtomicBool, outcome: &Result<StepOutcome, Error>) {
        let lack = outcome.as_ref().err().filter(|error| error.is_no_space());
        starved.store(lack.is_some(), Ordering::Relaxed);
        if let Some(lack) = lack {
            self.over_file_limit.store(lack.is_over_file_limit(), Ordering::Relaxed);
        }
        if is_work(outcome) {
            self.room.notify();
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The running threads.
pub(super) struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, Error> {
        let mut threads = Self { handles: Vec::new() };
        let bodies: [(&str, fn(&Shared)); 4] = [
            ("kv-commit", commit_thread),
            ("kv-flush", flush_thread),
            ("kv-compact", compaction_thread),
            ("kv-log", log_thread),
        ];
        for (name, body) in bodies {
            let shared_clone = Arc::clone(shared);
            let spawned =
                thread::Builder::new().name(name.into()).spawn(move || body(&shared_clone));
            match spawned {
                Ok(handle) => threads.handles.push(handle),
                Err(error) => {
                    threads.stop(shared);
                    return Err(Error::io(IoOp::StartThread, name, error));
                }
            }
        }
        Ok(threads)
    }

    pub(super) fn stop(self, shared: &Shared) {
        shared.signals.stopping.store(true, Ordering::Release);
        shared.queue.close();
        for signal in [&shared.signals.flush, &shared.signals.compaction, &shared.signals.log] {
            signal.notify();
        }
        for handle in self.handles {
            if handle.join().is_err() {
                tracing::error!("a background thread of the store had panicked");
            }
        }
    }
}

fn commit_thread(shared: &Shared) {
    while shared.queue.wait_for_lead() {
        shared.lead_commit_from_thread();
    }
}

fn flush_thread(shared: &Shared) {
    while !shared.signals.is_stopping() {
        if shared.flush_all().is_err() {
            pause_before_retry(shared, &shared.signals.flush);
        } else {
            shared.signals.flush.wait(Duration::from_secs(1));
        }
    }
}

fn compaction_thread(shared: &Shared) {
    let mut run = None;
    while !shared.signals.is_stopping() {
        let times = &shared.times;
        let outcome = times.measure(&times.compaction, || shared.engine.compact_one(), is_work);
        shared.signals.after_step(&shared.signals.compaction_starved, &outcome);
        let begun = Instant::now();
        let is_requested = shared.compact_requested(&mut run);
        match outcome {
            Ok(StepOutcome::Done) => {}
            // Only the requester waits for a requested compaction, so the thread leaves the disk to
            // writes and reads for half of the time.
            Ok(StepOutcome::Nothing) if is_requested => {
                shared.signals.compaction.wait(begun.elapsed().min(LONGEST_REST));
            }
            Ok(StepOutcome::Nothing) => {
                shared.engine.delete_obsolete_tables();
                shared.signals.compaction.wait(Duration::from_secs(1));
            }
            Err(error) => {
                warn(shared, &error, "compaction");
                pause_before_retry(shared, &shared.signals.compaction);
            }
        }
    }
}

fn log_thread(shared: &Shared) {
    let interval = sync_interval(shared.engine.options());
    let mut checked = Instant::now();
    while !shared.signals.is_stopping() {
        let mut outcome = shared.engine.prepare_segment();
        let lacks_space = outcome.as_ref().is_err_and(Error::is_no_space);
        shared.signals.log_starved.store(lacks_space, Ordering::Relaxed);
        if outcome.is_ok() && interval.is_some() {
            outcome = shared.engine.sync_log();
        }
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            outcome = shared.engine.check_directory().and(outcome);
        }
        if let Err(error) = outcome {
            warn(shared, &error, "preparing or syncing the log");
            pause_before_retry(shared, &shared.signals.log);
        } else {
            shared.signals.log.wait(interval.unwrap_or(CHECK_EVERY));
        }
    }
}

impl Shared {
    /// Flushes all rotated memtables.
    pub(super) fn flush_all(&self) -> Result<(), Error> {
        loop {
            let times = &self.times;
            let outcome = times.measure(&times.flush, || self.engine.flush_one(), is_work);
            self.signals.after_step(&self.signals.flush_starved, &outcome);
            match outcome {
                Ok(StepOutcome::Nothing) => return Ok(()),
                Ok(StepOutcome::Done) => self.signals.compaction.notify(),
                Err(error) => {
                    warn(self, &error, "flush");
                    return Err(error);
                }
            }
        }
    }
}

/// Returns true if the step had something to do, even if it failed.
fn is_work(outcome: &Result<StepOutcome, Error>) -> bool {
    !matches!(outcome, Ok(StepOutcome::Nothing))
}

fn warn(shared: &Shared, error: &Error, what: &'static str) {
    // A failed store has logged its failure.
    let is_logged = matches!(error, Error::Failed { .. } | Error::Closing);
    if !is_logged && shared.warnings.allows(&error.to_string(), what, Instant::now()) {
        tracing::warn!(%error, "{what} failed, will retry");
    }
}

fn pause_before_retry(shared: &Shared, signal: &Signal) {
    signal.wait(RETRY_AFTER);
    if !shared.signals.is_stopping() {
        // A signal of new work ends the wait early: this sleep still limits the rate of retries.
        thread::sleep(RETRY_AFTER / 10);
    }
}
