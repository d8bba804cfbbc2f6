//! The node's clock in this process: reads the wall clock, and keeps the bound of
//! [`node::BoundedClock`] durable ahead of it, on a thread of its own.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lsm::{Db, Version};
use node::{BoundedClock, NoVersion, StartError};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::counters::clocks;

/// How often the bound is looked at; a fraction of how far it is ahead at least.
const PERIOD: Duration = Duration::from_millis(100);

/// Where it is waited, for profiles.
static IDLE: profile::Place =
    profile::Place::new(profile::WaitKind::Idle, "clock: waiting for the next bound to persist");

/// The clock that all loops take versions from.
pub(crate) struct NodeClock {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    clock: BoundedClock,
    db: Arc<Db>,
    stopping: Mutex<bool>,
    changed: Condvar,
    /// For those who wait for a bound.
    durable: Notify,
}

impl NodeClock {
    /// Keeps the bound of a clock that has begun.
    pub(crate) fn start(db: &Arc<Db>, clock: BoundedClock) -> Result<Self, StartError> {
        let shared = Arc::new(Shared {
            clock,
            db: Arc::clone(db),
            stopping: Mutex::new(false),
            changed: Condvar::new(),
            durable: Notify::new(),
        });
        let kept = Arc::clone(&shared);
        let thread = thread::Builder::new().name("clock".to_owned());
        let thread = thread.spawn(move || kept.keep_ahead()).map_err(StartError::Thread)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// A version greater than all this node issued before.
    #[inline]
    pub(crate) fn issue(&self) -> Result<Version, NoVersion> {
        let issued = self.shared.clock.issue(clocks::now());
        if matches!(issued, Err(NoVersion::Lags | NoVersion::Failed(_))) {
            // Another clock that was taken in may have moved this one past it.
            self.shared.changed.notify_all();
        }
        issued
    }

    /// The same, but waits for a bound that lags behind, at most so long: a disk that stalls delays
    /// writes, as it delays their sync, before it refuses any.
    pub(crate) async fn issue_within(&self, patience: Duration) -> Result<Version, NoVersion> {
        let mut issued = self.issue();
        if !matches!(issued, Err(NoVersion::Lags)) {
            return issued;
        }
        let until = tokio::time::Instant::now() + patience;
        loop {
            // Before the attempt, so that a bound that comes right after it is not missed.
            let durable = self.shared.durable.notified();
            issued = self.issue();
            let lags = matches!(issued, Err(NoVersion::Lags));
            if !lags || tokio::time::timeout_at(until, durable).await.is_err() {
                return issued;
            }
        }
    }

    /// Stops for good, when nobody issues any more, and lowers the bound to what was issued.
    pub(crate) fn stop(&self) {
        *self.shared.stopping() = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic in there was printed; the old bound stands and is as safe.
            let _ = thread.join();
            // Past the store's backlog, as it was kept: see `keep_ahead`.
            if let Err(error) = self.shared.db.commit(self.shared.clock.stop()) {
                tracing::warn!(%error, "cannot lower the clock's bound; the next start will wait");
            }
        }
    }
}

impl Shared {
    fn stopping(&self) -> parking_lot::MutexGuard<'_, bool> {
        self.stopping.lock()
    }

    fn keep_ahead(&self) {
        let mut stopping = self.stopping();
        while !*stopping {
            drop(stopping);
            if let Some((bound, batch)) = self.clock.wanted(clocks::now()) {
                let begun = Instant::now();
                // Past the store's backlog: one small record must not wait for compactions.
                let result = self.db.commit(batch);
                self.clock.kept(bound, begun.elapsed().as_micros() as u64, result);
                self.durable.notify_waiters();
            }
            stopping = self.stopping();
            if !*stopping {
                IDLE.during(|| self.changed.wait_for(&mut stopping, PERIOD));
            }
        }
    }
}
