//! The node's clock: reads the wall clock and, on a thread of its own, stores the bound of
//! [`server::BoundedClock`] in the store before the time reaches the bound.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lsm::{Db, Version};
use parking_lot::{Condvar, Mutex};
use server::{BoundedClock, NoVersion, StartError};
use tokio::sync::Notify;

use crate::counters::clocks;

/// Interval between checks of the bound; at most a fraction of the bound's lead.
const PERIOD: Duration = Duration::from_millis(100);

/// Idle time of the clock thread, as profiles name it.
static IDLE: profile::WaitSite =
    profile::WaitSite::new(profile::WaitKind::Idle, "clock: waiting for the next bound to persist");

/// The clock from which all loops take versions.
pub(crate) struct NodeClock {
    shared: Arc<ClockState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct ClockState {
    clock: BoundedClock,
    db: Arc<Db>,
    stopping: Mutex<bool>,
    changed: Condvar,
    /// Notified when a bound becomes durable.
    durable: Notify,
}

impl NodeClock {
    /// Starts the thread that keeps the bound of a started clock ahead.
    pub(crate) fn start(db: &Arc<Db>, clock: BoundedClock) -> Result<Self, StartError> {
        let shared = Arc::new(ClockState {
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

    /// Issues a version greater than all versions this node has issued before.
    #[inline]
    pub(crate) fn issue(&self) -> Result<Version, NoVersion> {
        let issued = self.shared.clock.issue(clocks::now());
        if matches!(issued, Err(NoVersion::Lags | NoVersion::Failed(_))) {
            // Merging another node's time may have moved this clock past its bound.
            self.shared.changed.notify_all();
        }
        issued
    }

    /// Issues a version, and waits up to `patience` for a bound that lags: a stalled disk first
    /// delays writes, as it delays their sync, before it refuses any.
    pub(crate) async fn issue_within(&self, patience: Duration) -> Result<Version, NoVersion> {
        let mut issued = self.issue();
        if !matches!(issued, Err(NoVersion::Lags)) {
            return issued;
        }
        let until = tokio::time::Instant::now() + patience;
        loop {
            // Created before the attempt, so that a bound that becomes durable right after it is
            // not missed.
            let durable = self.shared.durable.notified();
            issued = self.issue();
            let lags = matches!(issued, Err(NoVersion::Lags));
            if !lags || tokio::time::timeout_at(until, durable).await.is_err() {
                return issued;
            }
        }
    }

    /// Stops the clock and lowers the bound to the last issued version. No version may be issued
    /// afterwards.
    pub(crate) fn stop(&self) {
        *self.shared.stopping() = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic of the thread was printed; the old bound stands and is as safe.
            let _ = thread.join();
            // Bypasses the store's backlog, as `keep_ahead` does.
            if let Err(error) = self.shared.db.commit(self.shared.clock.stop()) {
                tracing::warn!(%error, "cannot lower the clock's bound; the next start will wait");
            }
        }
    }
}

impl ClockState {
    fn stopping(&self) -> parking_lot::MutexGuard<'_, bool> {
        self.stopping.lock()
    }

    fn keep_ahead(&self) {
        let mut stopping = self.stopping();
        while !*stopping {
            drop(stopping);
            if let Some((bound, batch)) = self.clock.next_bound(clocks::now()) {
                let begun = Instant::now();
                // Bypasses the store's backlog: one small record must not wait for compactions.
                let result = self.db.commit(batch);
                self.clock.bound_stored(bound, begun.elapsed().as_micros() as u64, result);
                self.durable.notify_waiters();
            }
            stopping = self.stopping();
            if !*stopping {
                IDLE.during(|| self.changed.wait_for(&mut stopping, PERIOD));
            }
        }
    }
}
