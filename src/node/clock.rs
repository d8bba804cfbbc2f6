//! The node's clock in this process: reads the wall clock, and keeps the bound of
//! [`cluster::Clock`] durable ahead of it, on a thread of its own.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Clock;
use lsm::{Batch, Core, Db, Lookup, Record, Space, Version, Wait};
use tokio::sync::Notify;

/// Where the bound is stored, in [`Space::Node`]: 8 bytes, little-endian.
pub(crate) const BOUND_KEY: &[u8] = b"clock-bound";

/// Bits of a version's time below its microseconds.
pub(crate) const COUNTER_BITS: u32 = 12;

/// How often the bound is looked at; a fraction of how far it is ahead at least.
const PERIOD: Duration = Duration::from_millis(100);

/// Where it is waited, for profiles.
static IDLE: profile::Place =
    profile::Place::new(profile::Kind::Idle, "clock: waiting for the next bound to persist");

/// The longest that a start waits for the wall clock: a bit more than the bound is ahead at most.
const LONGEST_WAIT: Duration = Duration::from_millis(2_500);

/// How far ahead of the wall clock, beyond what other clocks may be, a node of several may begin: a
/// stamp from there is refused by the others until that time has come. A kill leaves the bound a
/// few seconds ahead at most; much more than that is a clock that was wrong, or is.
const MOST_AHEAD: Duration = Duration::from_secs(60);

/// Why a write got no version.
#[derive(Debug, Clone)]
pub(crate) enum NoVersion {
    /// Persisting the bound lags behind the clock.
    Lags,
    /// Persisting the bound failed.
    Failed(lsm::Error),
}

/// The clock all loops stamp writes with.
pub(crate) struct NodeClock {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    clock: Arc<Clock>,
    db: Arc<Db>,
    state: Mutex<State>,
    changed: Condvar,
    /// For those who wait for a bound.
    durable: Notify,
}

struct State {
    /// Version of the bound's record; each one written is newer.
    record: Version,
    failed: Option<lsm::Error>,
    stopping: bool,
}

/// Microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn decode_bound(record: &Record) -> Result<u64, String> {
    let value = record.value();
    let bytes = value
        .as_ref()
        .try_into()
        .map_err(|_| format!("the clock's bound is corrupt: {} bytes instead of 8", value.len()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn bound_record(core: &Core) -> Result<Option<Record>, String> {
    match core.get(Space::Node, BOUND_KEY, Wait::Yes).map_err(|error| error.to_string())? {
        Lookup::Found(record) => Ok(Some(record)),
        Lookup::Absent | Lookup::WouldBlock | Lookup::TooLong(_) => Ok(None),
    }
}

/// The bound of a node that does not run; 0 = there is none.
pub(crate) fn kept_bound(core: &Core) -> Result<u64, String> {
    bound_record(core)?.map_or(Ok(0), |record| decode_bound(&record))
}

/// Sets it, though it may be lower than before: the caller has made sure that no record of this
/// node is above.
pub(crate) fn lower_bound(core: &Core, bound: u64) -> Result<(), String> {
    let Some(record) = bound_record(core)? else { return Ok(()) };
    let mut version = record.view().version();
    version.time += 1;
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, BOUND_KEY, version, &bound.to_le_bytes());
    let written = put.and_then(|()| core.commit(std::iter::once(&batch)));
    written.map(drop).map_err(|error| format!("the clock's bound: {error}"))
}

impl NodeClock {
    /// Begins above everything this store's node ever issued, once a first bound is durable. One of
    /// `nodes` is refused if that is far ahead of the wall clock; nothing was changed then.
    pub(crate) fn start(
        db: &Arc<Db>,
        origin: u32,
        nodes: usize,
        max_skew: Duration,
    ) -> Result<Self, String> {
        let stored = db.get(Space::Node, BOUND_KEY).map_err(|error| error.to_string())?;
        let (persisted, record) = match stored {
            Some(record) => (decode_bound(&record)?, record.view().version()),
            None => (0, Version { time: 0, origin }),
        };
        let ahead = Clock::micros(persisted).saturating_sub(wall_micros());
        let ahead = Duration::from_micros(ahead);
        if ahead > MOST_AHEAD + max_skew {
            let ahead = ahead.as_secs();
            if nodes > 1 {
                return Err(format!(
                    "this node has issued timestamps up to {ahead} s ahead of its clock, and the \
                     other nodes refuse such timestamps: correct the clock if it is behind; if it \
                     is correct now and was ahead before, run `kvorum repair-clock`"
                ));
            }
            tracing::warn!(ahead_s = ahead, "timestamps continue ahead of the clock");
        }
        let shared = Arc::new(Shared {
            clock: Arc::new(Clock::start(origin, wall_micros(), persisted)),
            db: Arc::clone(db),
            state: Mutex::new(State { record, failed: None, stopping: false }),
            changed: Condvar::new(),
            durable: Notify::new(),
        });
        if let Some(bound) = shared.clock.bound_wanted(wall_micros()) {
            shared.persist(bound).map_err(|error| error.to_string())?;
        }
        let kept = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("clock".to_owned())
            .spawn(move || kept.keep_ahead())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The clock itself.
    pub(crate) fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// Waits until this clock is not further ahead of the wall clock than the others take it: after
    /// a kill it begins at its bound, and they would refuse its stamps. With the default skew that
    /// ends within 0.75 s of the kill, unless the disk is slow, or another clock was followed that
    /// is ahead. A wall clock that stepped back is not waited for.
    pub(crate) fn wait_for_wall(&self, nodes: usize, max_skew: Duration) {
        let wall = wall_micros();
        let ahead = (self.shared.clock.now(wall) >> COUNTER_BITS).saturating_sub(wall);
        let wait = Duration::from_micros(ahead).saturating_sub(max_skew / 2);
        if nodes > 1 && !wait.is_zero() {
            let wait = wait.min(LONGEST_WAIT);
            tracing::info!(?wait, "the clock begins ahead of the wall clock, which is waited for");
            thread::sleep(wait);
        }
    }

    /// A version greater than all this node issued before.
    #[inline]
    pub(crate) fn issue(&self) -> Result<Version, NoVersion> {
        match self.shared.clock.issue(wall_micros()) {
            Ok(stamp) => Ok(Version { time: stamp.time, origin: stamp.origin }),
            Err(cluster::BoundReached) => {
                // Another clock that was taken in may have moved this one past it.
                self.shared.changed.notify_all();
                Err(match &self.shared.lock().failed {
                    Some(error) => NoVersion::Failed(error.clone()),
                    None => NoVersion::Lags,
                })
            }
        }
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
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic in there was printed; the old bound stands and is as safe.
            let _ = thread.join();
            if let Err(error) = self.shared.persist(self.shared.clock.stop()) {
                tracing::warn!(%error, "cannot lower the clock's bound; the next start will wait");
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_ahead(&self) {
        let mut state = self.lock();
        while !state.stopping {
            drop(state);
            if let Some(bound) = self.clock.bound_wanted(wall_micros()) {
                let result = self.persist(bound);
                let mut state = self.lock();
                if let (Err(error), None) = (&result, &state.failed) {
                    tracing::warn!(%error, "cannot persist the clock's bound: writes will stop");
                }
                state.failed = result.err();
                drop(state);
                self.durable.notify_waiters();
            }
            state = self.lock();
            if !state.stopping {
                let waited = IDLE.during(|| self.changed.wait_timeout(state, PERIOD));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Writes past the store's backlog: one small record must not wait for compactions.
    fn persist(&self, bound: u64) -> Result<(), lsm::Error> {
        let begun = Instant::now();
        let mut record = self.lock().record;
        record.time += 1;
        let mut batch = Batch::new();
        batch.put(Space::Node, BOUND_KEY, record, &bound.to_le_bytes())?;
        self.db.commit(batch)?;
        self.lock().record = record;
        self.clock.persisted(bound, begun.elapsed().as_micros() as u64);
        Ok(())
    }
}
