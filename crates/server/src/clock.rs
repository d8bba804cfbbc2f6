//! The clock that versions a node's writes, and its bound: a durable upper limit of the versions
//! that the clock has issued.
//!
//! ```text
//!  start    reads the stored bound ─┬─ it is far ahead of the wall clock ─▶ the start is refused
//!                                   └─ else the clock begins at it, and stores a greater bound
//!  running  `next_bound` makes a batch with a new bound ─▶ the driver commits the batch
//!             ─▶ `on_bound_stored`: the clock may issue versions up to the new bound
//!  stop     lowers the stored bound to the last issued version
//! ```

use std::sync::Arc;

use lsm::{Batch, Engine, Record, Space, Version};
use parking_lot::{Mutex, MutexGuard};
use protocol::{Clock, NotIssued, Now};

use crate::start_error::StartError;
use crate::store::Store;

/// Key of the bound in [`Space::Node`]; the value is 8 bytes, little-endian.
pub(crate) const BOUND_KEY: &[u8] = b"clock-bound";

/// Largest lead of the stored bound over the wall clock, in microseconds beyond the allowed skew,
/// with which a node with peers may start. A kill leaves the bound a few seconds ahead at most; a
/// much greater lead means that a clock is or was wrong, and the peers would refuse the versions.
const MAX_LEAD: u64 = 60_000_000;

/// Longest wait of a start for the wall clock, in microseconds: slightly more than the bound's
/// greatest lead.
const LONGEST_WAIT: u64 = 2_500_000;

/// End of the last day that a node starts on, in microseconds since 1970 (2112-09-17, 0:00 UTC).
/// A version has 52 bits for microseconds, which suffice for 23 h 53 min more. This margin is far
/// greater than the allowed skew and the lead of a bound.
const LAST_DAYS_END: u64 = 4_503_513_600_000_000;

/// Refuses a wall clock, in microseconds since 1970, that is within a day of the last time that a
/// version can encode, or later.
pub fn refuse_after_last_day(wall: u64) -> Result<(), StartError> {
    if wall < LAST_DAYS_END { Ok(()) } else { Err(StartError::AfterLastDay) }
}

/// Reason why a write got no version.
#[derive(Debug, Clone)]
pub enum NoVersion {
    /// Storing the bound lags behind the clock.
    Lags,
    /// Storing the bound failed.
    Failed(lsm::Error),
    /// Most other nodes would refuse the version: the clock is, or was, ahead of theirs.
    Ahead(NotIssued),
}

/// A node's clock with its durable bound.
#[derive(Debug)]
pub struct BoundedClock {
    clock: Arc<Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Version of the newest bound record; each later record gets a greater one.
    version: Version,
    failed: Option<lsm::Error>,
}

impl BoundedClock {
    /// Opens the clock above all versions that this store's node ever issued, and stores a first
    /// bound durably. With several `nodes`, a stored bound far ahead of the wall clock is an error,
    /// and nothing is changed. `wall` and `max_skew` are in microseconds.
    pub fn open<S: Store>(
        store: &S,
        name: &str,
        nodes: usize,
        wall: u64,
        max_skew: u64,
    ) -> Result<Self, StartError> {
        let origin = protocol::origin_of(name);
        let (persisted, version) = match bound_record(store.engine())? {
            Some(record) => (decode_bound(&record)?, record.view().version()),
            None => (0, Version { time: 0, origin }),
        };
        let ahead = Clock::micros(persisted).saturating_sub(wall);
        if ahead > MAX_LEAD + max_skew {
            let seconds = ahead / 1_000_000;
            if nodes > 1 {
                let wait_seconds = (ahead - MAX_LEAD - max_skew).div_ceil(1_000_000);
                return Err(StartError::Ahead { seconds, wait_seconds });
            }
            tracing::warn!(ahead_s = seconds, "timestamps continue ahead of the clock");
        }
        let clock = Arc::new(Clock::start(origin, wall, persisted));
        let bounded = Self { clock, state: Mutex::new(State { version, failed: None }) };
        if let Some((bound, batch)) = bounded.next_bound(Now { mono: 0, wall }) {
            store.commit(batch).map_err(bound_error)?;
            bounded.on_bound_stored(bound, 0, Ok(()));
        }
        Ok(bounded)
    }

    /// Returns the clock without its bound.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Returns the time in microseconds for which a start must wait, so that the peers accept this
    /// clock's lead over the wall clock; 0 without peers. After a kill the clock begins at its
    /// bound, and the peers would refuse its versions. With the default skew the wait ends within
    /// 0.75 s of the kill, unless the disk is slow, or the node followed another clock that is
    /// ahead. The wait is 2.5 s at most, too short for a wall clock that stepped back by more.
    pub fn wait_for_wall(&self, nodes: usize, wall: u64, max_skew: u64) -> u64 {
        let ahead = Clock::micros(self.clock.last()).saturating_sub(wall);
        let wait = ahead.saturating_sub(max_skew / 2).min(LONGEST_WAIT);
        if nodes > 1 { wait } else { 0 }
    }

    /// Returns a version greater than all that this node issued before.
    #[inline]
    pub fn issue(&self, now: Now) -> Result<Version, NoVersion> {
        match self.clock.issue(now) {
            Ok(version) => Ok(Version { time: version.time, origin: version.origin }),
            Err(ahead @ (NotIssued::Ahead | NotIssued::WasAhead { .. })) => {
                Err(NoVersion::Ahead(ahead))
            }
            Err(NotIssued::BoundReached) => Err(match &self.lock().failed {
                Some(error) => NoVersion::Failed(error.clone()),
                None => NoVersion::Lags,
            }),
        }
    }

    /// Returns the next bound and a batch that stores it, if the current bound is near.
    pub fn next_bound(&self, now: Now) -> Option<(u64, Batch)> {
        let bound = self.clock.bound_to_persist(now)?;
        Some((bound, self.batch(bound)))
    }

    /// Receives the result of storing `bound`. `took`: microseconds from the request to the result.
    pub fn on_bound_stored(&self, bound: u64, took: u64, result: Result<(), lsm::Error>) {
        let mut state = self.lock();
        if let (Err(error), None) = (&result, &state.failed) {
            tracing::warn!(%error, "cannot persist the clock's bound: writes will stop");
        }
        let durable = result.is_ok();
        state.failed = result.err();
        drop(state);
        if durable {
            self.clock.mark_durable(bound, took);
        }
    }

    /// Stops the clock: it issues no versions from now on. The returned batch lowers the bound to
    /// the last version issued, so that the next start need not begin ahead of its wall clock.
    pub fn stop(&self) -> Batch {
        self.batch(self.clock.stop())
    }

    fn batch(&self, bound: u64) -> Batch {
        let mut state = self.lock();
        // A restart may find a record whose write was reported as failed, so no version is used
        // twice.
        state.version.time += 1;
        bound_batch(state.version, bound)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn bound_batch(version: Version, bound: u64) -> Batch {
    let mut batch = Batch::new();
    let put = batch.put(Space::Node, BOUND_KEY, version, &bound.to_le_bytes());
    put.expect("eight bytes fit a record");
    batch
}

fn bound_error(source: lsm::Error) -> StartError {
    StartError::Store { what: "the clock's bound", source }
}

fn bound_record(engine: &Engine) -> Result<Option<Record>, StartError> {
    engine.read(Space::Node, BOUND_KEY).map_err(bound_error)
}

fn decode_bound(record: &Record) -> Result<u64, StartError> {
    let value = record.value();
    let bytes = value.as_ref().try_into().map_err(|_| StartError::Damaged {
        what: "the clock's bound".to_owned(),
        why: format!("{} bytes instead of 8 in the node's own record `clock-bound`", value.len()),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns the bound of a stopped node; 0 = none is stored.
pub(crate) fn stored_bound(engine: &Engine) -> Result<u64, StartError> {
    bound_record(engine)?.map_or(Ok(0), |record| decode_bound(&record))
}

/// Sets the stored bound, which may lower it: the caller ensures that no record of this node has a
/// version above `bound`. Does nothing if no bound is stored.
pub(crate) fn lower_bound<S: Store>(store: &S, bound: u64) -> Result<(), StartError> {
    let Some(record) = bound_record(store.engine())? else { return Ok(()) };
    let mut version = record.view().version();
    version.time += 1;
    store.commit(bound_batch(version, bound)).map_err(bound_error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsm::{MemDisk, Options};

    use super::*;

    const WALL: u64 = 1_700_000_000_000_000;
    const SKEW: u64 = 500_000;

    fn at(wall: u64) -> Now {
        Now { mono: 0, wall }
    }

    #[test]
    fn a_time_that_versions_cannot_encode_is_refused() {
        assert!(refuse_after_last_day(WALL).is_ok());
        assert!(refuse_after_last_day(LAST_DAYS_END - 1).is_ok());
        for wall in [LAST_DAYS_END, u64::MAX >> 12, 1 << 52, u64::MAX] {
            let refused = refuse_after_last_day(wall).unwrap_err().to_string();
            assert!(refused.contains("a time after 2112-09-16"), "{refused}");
        }
        // Versions that a node issues in the last second before `LAST_DAYS_END` still fit.
        let furthest = Clock::limit(LAST_DAYS_END, 60_000_000);
        assert_eq!(Clock::micros(furthest), LAST_DAYS_END + 60_000_000);
    }

    fn engine() -> Engine {
        Engine::open(Arc::new(MemDisk::new()), Options::default()).unwrap()
    }

    fn open(engine: &Engine, wall: u64) -> Result<BoundedClock, StartError> {
        BoundedClock::open(engine, "a", 3, wall, SKEW)
    }

    #[test]
    fn no_version_is_issued_above_the_durable_bound() {
        let engine = engine();
        let clock = open(&engine, WALL).unwrap();
        let bound = stored_bound(&engine).unwrap();
        assert!(clock.issue(at(WALL)).unwrap().time < bound);
        let beyond = Clock::micros(bound) + 1;
        assert!(matches!(clock.issue(at(beyond)), Err(NoVersion::Lags)));
        let (next, batch) = clock.next_bound(at(beyond)).unwrap();
        let refused = lsm::Error::Busy { what: "x" };
        clock.on_bound_stored(next, 7, Err(refused));
        assert!(matches!(clock.issue(at(beyond)), Err(NoVersion::Failed(_))));
        Store::commit(&engine, batch).unwrap();
        clock.on_bound_stored(next, 7, Ok(()));
        assert!(clock.issue(at(beyond)).is_ok());
        assert_eq!(stored_bound(&engine).unwrap(), next);
    }

    #[test]
    fn a_start_issues_versions_above_all_earlier_ones_and_waits_for_the_wall_clock() {
        let engine = engine();
        let last = open(&engine, WALL).unwrap().issue(at(WALL + 1000)).unwrap();
        // After a kill the bound stays where it was, a second ahead.
        let again = open(&engine, WALL + 2000).unwrap();
        assert!(again.issue(at(WALL + 2000)).unwrap() > last);
        let wait = again.wait_for_wall(3, WALL + 2000, SKEW);
        assert!((500_000..=LONGEST_WAIT).contains(&wait), "{wait}");
        assert_eq!(again.wait_for_wall(1, WALL + 2000, SKEW), 0, "nobody would refuse it");
        let issued = again.issue(at(WALL + 3000)).unwrap();
        Store::commit(&engine, again.stop()).unwrap();
        assert_eq!(stored_bound(&engine).unwrap(), issued.time, "a clean stop lowers it");
        assert!(again.issue(at(WALL + 4000)).is_err());
    }

    #[test]
    fn a_start_far_ahead_is_refused_until_the_bound_is_lowered() {
        let engine = engine();
        let later = WALL + 3 * MAX_LEAD;
        open(&engine, later).unwrap();
        let refused = open(&engine, WALL).unwrap_err();
        let StartError::Ahead { seconds: 180.., wait_seconds } = refused else {
            panic!("{refused}")
        };
        let early = WALL + (wait_seconds - 1) * 1_000_000;
        assert!(open(&engine, early).is_err(), "{wait_seconds}");
        assert!(BoundedClock::open(&engine, "a", 1, WALL, SKEW).is_ok(), "alone it goes on");
        lower_bound(&engine, Clock::limit(WALL, SKEW)).unwrap();
        assert!(open(&engine, WALL).is_ok());
    }

    #[test]
    fn a_start_succeeds_after_the_wait_that_the_refusal_states() {
        let engine = engine();
        open(&engine, WALL + 3_600_000_000).unwrap();
        let refused = open(&engine, WALL).unwrap_err();
        let StartError::Ahead { wait_seconds, .. } = refused else { panic!("{refused}") };
        let text = refused.to_string();
        assert!(text.contains(&format!("in {wait_seconds} s succeeds")), "{text}");
        assert!(open(&engine, WALL + wait_seconds * 1_000_000).is_ok(), "{text}");
    }
}
