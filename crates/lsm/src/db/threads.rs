//! The store's own threads. Each waits for its signal, does steps of the engine until there is
//! nothing left, and waits again. While they are not far behind they offer their CPU to whoever
//! serves requests (`YieldBudget` in the engine).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use profile::{Place, WaitKind};

use super::{Shared, sync_interval};
use crate::engine::{Committed, Work};
use crate::error::{Error, IoOp};

/// How long a step that failed for lack of space or descriptors waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// How often it is looked whether the directory is still there: three calls that read nothing. It
/// bounds for how long writes are acknowledged into files that have no name any more.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How long a compaction of the whole store rests at most after one of its steps.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Where it is waited, for profiles.
static NO_WORK: Place = Place::new(WaitKind::Idle, "store: nothing to flush, compact or prepare");
static NO_ROOM: Place =
    Place::new(WaitKind::Queue, "writes: stalled by flush or compaction backlog");

/// Something happened; whoever waits looks again.
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

    /// Waits for the signal, at most so long, and clears it.
    fn wait(&self, at_most: Duration) {
        let mut raised = self.raised.lock();
        NO_WORK.during(|| self.changed.wait_while_for(&mut raised, |raised| !*raised, at_most));
        *raised = false;
    }

    /// Waits until `condition` holds; says whether it did in time.
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
            // The condition may change between the check and the wait: look again soon.
            NO_ROOM.during(|| self.changed.wait_for(&mut raised, left.min(RETRY_AFTER)));
        }
    }
}

/// Who waits for what.
#[derive(Default)]
pub(super) struct Signals {
    flush: Signal,
    pub(super) compaction: Signal,
    log: Signal,
    /// A flush or compaction was done.
    pub(super) room: Signal,
    /// The last flush, and the last compaction, found no space on the disk.
    flush_starved: AtomicBool,
    compaction_starved: AtomicBool,
    /// What stopped the last of those that did was the process's limit of file sizes.
    over_file_limit: AtomicBool,
    /// There was none for the next segment of the log either.
    log_starved: AtomicBool,
    stopping: AtomicBool,
}

impl Signals {
    pub(super) fn after(&self, committed: &Committed) {
        if committed.rotated {
            self.flush.notify();
        }
        if committed.switched {
            self.log.notify();
        }
    }

    /// Whether background work waits for space on the disk.
    pub(super) fn starved(&self) -> bool {
        self.flush_starved.load(Ordering::Relaxed)
            || self.compaction_starved.load(Ordering::Relaxed)
    }

    /// Why that has no room for `what`.
    pub(super) fn no_room_for(&self, what: &'static str) -> Error {
        match self.over_file_limit.load(Ordering::Relaxed) {
            true => Error::OverFileLimit { what },
            false => Error::NoSpace { what },
        }
    }

    /// The same, or there is none for more of the log.
    pub(super) fn lacks_space(&self) -> bool {
        self.starved() || self.log_starved.load(Ordering::Relaxed)
    }

    /// Notes how a step ended. Whoever waits for room looks again, whatever that was.
    fn after_step(&self, starved: &AtomicBool, outcome: &Result<Work, Error>) {
        let lack = outcome.as_ref().err().filter(|error| error.is_no_space());
        starved.store(lack.is_some(), Ordering::Relaxed);
        if let Some(lack) = lack {
            self.over_file_limit.store(lack.is_over_file_limit(), Ordering::Relaxed);
        }
        if is_work(outcome) {
            self.room.notify();
        }
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Handles of the running threads.
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
            let shared_too = Arc::clone(shared);
            let spawned = thread::Builder::new().name(name.into()).spawn(move || body(&shared_too));
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
        shared.lead_from_thread();
    }
}

fn flush_thread(shared: &Shared) {
    while !shared.signals.stopping() {
        if shared.flush_all().is_err() {
            thread_pause(shared, &shared.signals.flush);
        } else {
            shared.signals.flush.wait(Duration::from_secs(1));
        }
    }
}

fn compaction_thread(shared: &Shared) {
    let mut run = None;
    while !shared.signals.stopping() {
        let times = &shared.times;
        let outcome = times.during(&times.compaction, || shared.engine.compact_one(), is_work);
        shared.signals.after_step(&shared.signals.compaction_starved, &outcome);
        let begun = Instant::now();
        let goes_on = shared.compact_asked(&mut run);
        match outcome {
            Ok(Work::Done) => {}
            // Nobody waits for it but who asked: writes and reads have the disk half of the time.
            Ok(Work::Nothing) if goes_on => {
                shared.signals.compaction.wait(begun.elapsed().min(LONGEST_REST));
            }
            Ok(Work::Nothing) => {
                shared.engine.delete_obsolete_tables();
                shared.signals.compaction.wait(Duration::from_secs(1));
            }
            Err(error) => {
                warn(shared, &error, "compaction");
                thread_pause(shared, &shared.signals.compaction);
            }
        }
    }
}

fn log_thread(shared: &Shared) {
    let interval = sync_interval(shared.engine.options());
    let mut checked = Instant::now();
    while !shared.signals.stopping() {
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
            thread_pause(shared, &shared.signals.log);
        } else {
            shared.signals.log.wait(interval.unwrap_or(CHECK_EVERY));
        }
    }
}

impl Shared {
    /// Flushes everything that has been rotated.
    pub(super) fn flush_all(&self) -> Result<(), Error> {
        loop {
            let times = &self.times;
            let outcome = times.during(&times.flush, || self.engine.flush_one(), is_work);
            self.signals.after_step(&self.signals.flush_starved, &outcome);
            match outcome {
                Ok(Work::Nothing) => return Ok(()),
                Ok(Work::Done) => self.signals.compaction.notify(),
                Err(error) => {
                    warn(self, &error, "flush");
                    return Err(error);
                }
            }
        }
    }
}

/// Whether there was something to do, be it in vain.
fn is_work(outcome: &Result<Work, Error>) -> bool {
    !matches!(outcome, Ok(Work::Nothing))
}

fn warn(shared: &Shared, error: &Error, what: &'static str) {
    // A failed store has said so once.
    let is_said = matches!(error, Error::Failed { .. } | Error::Closing);
    if !is_said && shared.complaints.is_news(&error.to_string(), what, Instant::now()) {
        tracing::warn!(%error, "{what} failed, will retry");
    }
}

fn thread_pause(shared: &Shared, signal: &Signal) {
    signal.wait(RETRY_AFTER);
    if !shared.signals.stopping() {
        // Signals of new work must not shorten the pause to nothing.
        thread::sleep(RETRY_AFTER / 10);
    }
}
