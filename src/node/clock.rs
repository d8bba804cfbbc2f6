//! The node's clock, which reads the wall clock. A thread of the clock stores the bound of
//! [`server::BoundedClock`] before the time reaches the bound.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lsm::{Db, Version};
use parking_lot::{Condvar, Mutex};
use server::{BoundedClock, NoVersion, StartError};
use tokio::sync::Notify;

use crate::counters::clocks;

/// Interval between checks of the bound: at most a fraction of the bound's lead over the time.
const PERIOD: Duration = Duration::from_millis(100);

/// Time to persist a bound from which on the disk is logged as slow. Writes then wait noticeably.
const SLOW_COMMIT: Duration = Duration::from_millis(250);

/// Minimum interval between two log lines about a slow disk.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Idle time of the clock thread, with its name in profiles.
static IDLE: profile::WaitSite =
    profile::WaitSite::new(profile::WaitKind::Idle, "clock: waiting for the next bound to persist");

/// The clock that issues the versions of all loops.
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
    /// Starts the thread that raises the bound of `clock` in time.
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
        let thread = thread.spawn(move || kept.store_bounds()).map_err(StartError::Thread)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Issues a version greater than all earlier versions of this node. Fails if the bound lags, if
    /// the store of the bound failed, or if this clock is too far ahead of most other nodes'
    /// clocks.
    #[inline]
    pub(crate) fn issue(&self) -> Result<Version, NoVersion> {
        let issued = self.shared.clock.issue(clocks::now());
        if matches!(issued, Err(NoVersion::Lags | NoVersion::Failed(_))) {
            // The merge of another node's time may have moved this clock past its bound.
            self.shared.changed.notify_all();
        }
        issued
    }

    /// Issues a version. If the bound lags, waits for it, up to `max_wait`. A stalled disk then
    /// delays writes before it refuses them, like their sync.
    pub(crate) async fn issue_within(&self, max_wait: Duration) -> Result<Version, NoVersion> {
        let mut issued = self.issue();
        if !matches!(issued, Err(NoVersion::Lags)) {
            return issued;
        }
        let until = tokio::time::Instant::now() + max_wait;
        loop {
            // Created before the attempt, so the notification of a bound that becomes durable right
            // after the attempt is not missed.
            let durable = self.shared.durable.notified();
            issued = self.issue();
            let lags = matches!(issued, Err(NoVersion::Lags));
            if !lags || tokio::time::timeout_at(until, durable).await.is_err() {
                return issued;
            }
        }
    }

    /// Stops the clock, and lowers the bound to the last issued version. The caller must not issue
    /// versions afterwards.
    pub(crate) fn stop(&self) {
        *self.shared.lock_stopping() = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // If the thread panicked, the panic was already printed. The old bound stays in force,
            // which is also safe.
            let _ = thread.join();
            // Bypasses the store's backlog, like `store_bounds`.
            if let Err(error) = self.shared.db.commit(self.shared.clock.stop()) {
                tracing::warn!(%error, "cannot lower the clock's bound; the next start will wait");
            }
        }
    }
}

impl ClockState {
    fn lock_stopping(&self) -> parking_lot::MutexGuard<'_, bool> {
        self.stopping.lock()
    }

    fn store_bounds(&self) {
        let mut logged: Option<Instant> = None;
        let mut stopping = self.lock_stopping();
        while !*stopping {
            drop(stopping);
            if let Some((bound, batch)) = self.clock.next_bound(clocks::now()) {
                let begun = Instant::now();
                // Bypasses the store's backlog, because one small record must not wait for
                // compactions.
                let result = self.db.commit(batch);
                let took = begun.elapsed();
                if took >= SLOW_COMMIT && logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    tracing::warn!(
                        took_ms = took.as_millis() as u64,
                        "the disk is slow: this node's writes wait for it, and get 503 if a new \
                         bound of the clock takes longer than half of --deadline"
                    );
                }
                self.clock.on_bound_stored(bound, took.as_micros() as u64, result);
                self.durable.notify_waiters();
            }
            stopping = self.lock_stopping();
            if !*stopping {
                IDLE.during(|| self.changed.wait_for(&mut stopping, PERIOD));
            }
        }
    }
}
