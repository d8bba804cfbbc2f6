//! Which records a compaction may drop for good, once nothing of their keys lies elsewhere: a rule
//! that the store's owner makes and goes on changing while the engine runs.
//!
//! | | of users' tombstones and values that expire |
//! |---|---|
//! | alone | what is so old that no write can be on its way that it would have to hide |
//! | in a cluster | what all replicas held the same: up to the *watermark* of its partition |
//!
//! Hints are nobody else's: their tombstones may go at once. What is kept by idempotency keys goes
//! by age, whoever else there is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::batch::Space;
use crate::record::{COUNTER_BITS, Kind, RecordRef};

/// Partitions of the users' keys, of which each has a watermark.
const PARTITIONS: usize = 1 << 16;

/// See the module.
pub struct PurgeRule {
    of_data: OfData,
    /// Age in microseconds at which a record of [`Space::Idempotency`] goes.
    remembered_micros: u64,
    wall_micros: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// What holds for users' records.
enum OfData {
    /// Nothing goes, of whatever space.
    Never,
    /// What is older than so many microseconds.
    Alone(u64),
    Proven(Watermarks),
}

struct Watermarks {
    partition_of: fn(&[u8]) -> u16,
    /// How many partitions the node holds.
    held: AtomicU32,
    /// Made with the first one that is raised: 512 KiB.
    times: OnceLock<Box<[AtomicU64]>>,
    /// How often any of this changed.
    changes: AtomicU64,
    /// As of so many times.
    reached: Mutex<(u64, Arc<Reached>)>,
}

impl PurgeRule {
    /// Nothing ever goes.
    pub fn never() -> Self {
        Self { of_data: OfData::Never, remembered_micros: 0, wall_micros: Box::new(|| 0) }
    }

    /// For a node that holds the only replica: what is older than `after_micros` goes.
    pub fn alone(
        after_micros: u64,
        remembered_micros: u64,
        wall_micros: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let of_data = OfData::Alone(after_micros);
        Self { of_data, remembered_micros, wall_micros: Box::new(wall_micros) }
    }

    /// For a node among others: what was written up to the watermark of its key's partition goes.
    /// All watermarks are 0 at first, and nothing goes.
    pub fn proven(
        partition_of: fn(&[u8]) -> u16,
        remembered_micros: u64,
        wall_micros: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let of_data = OfData::Proven(Watermarks {
            partition_of,
            held: AtomicU32::new(PARTITIONS as u32),
            times: OnceLock::new(),
            changes: AtomicU64::new(0),
            reached: Mutex::default(),
        });
        Self { of_data, remembered_micros, wall_micros: Box::new(wall_micros) }
    }

    /// Raises a partition's watermark, a time of a version; a lower one changes nothing.
    /// Compactions go by it at once, so it must be durable elsewhere before. Without effect where
    /// nothing goes by watermarks.
    pub fn raise(&self, partition: u16, time: u64) {
        let OfData::Proven(watermarks) = &self.of_data else { return };
        if time == 0 {
            return;
        }
        let times =
            watermarks.times.get_or_init(|| (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect());
        times[usize::from(partition)].fetch_max(time, Ordering::Relaxed);
        watermarks.changes.fetch_add(1, Ordering::Release);
    }

    /// Raises the watermarks of all partitions: see [`PurgeRule::raise`].
    pub fn raise_all(&self, time: u64) {
        (0..=u16::MAX).for_each(|partition| self.raise(partition, time));
    }

    /// Says how many partitions the node holds; all, unless told. What may go of a table is judged
    /// by how many of these have come how far.
    pub fn set_held(&self, partitions: u32) {
        let OfData::Proven(watermarks) = &self.of_data else { return };
        watermarks.held.store(partitions, Ordering::Relaxed);
        watermarks.changes.fetch_add(1, Ordering::Release);
    }

    /// A partition's watermark; 0 = nothing may go.
    pub fn watermark(&self, partition: u16) -> u64 {
        match &self.of_data {
            OfData::Proven(watermarks) => watermarks.of(partition),
            OfData::Never | OfData::Alone(_) => 0,
        }
    }

    /// Whether a record may go, as far as it is for its owner to say.
    #[inline]
    pub fn may_purge(&self, space: Space, key: &[u8], record: RecordRef<'_>) -> bool {
        // Nearly all records are values for good: nothing else is asked for them.
        let expires = space == Space::Data && record.expiry_ms() != 0;
        let can_go = record.kind() != Kind::Value || expires || space == Space::Idempotency;
        can_go && self.allows(space, key, record)
    }

    fn allows(&self, space: Space, key: &[u8], record: RecordRef<'_>) -> bool {
        let is_older = |micros: u64| {
            let latest = record.latest().max(record.expiry_time()) >> COUNTER_BITS;
            latest.saturating_add(micros) < (self.wall_micros)()
        };
        match (&self.of_data, space) {
            (OfData::Never, _) => false,
            (_, Space::Hints) => true,
            (_, Space::Idempotency) => is_older(self.remembered_micros),
            (OfData::Alone(after), _) => is_older(*after),
            (OfData::Proven(watermarks), Space::Data) => {
                Self::goes_by(record, watermarks.of((watermarks.partition_of)(key)))
            }
            (OfData::Proven(_), Space::Node | Space::Conditions) => false,
        }
    }

    /// Whether a user's record may go by a watermark of its partition, by nothing but itself, so
    /// that all replicas find the same. A conditional write can have an older ballot than the
    /// version that it continues, if that came from a clock that was ahead: it stays until the
    /// watermark has passed both, for it hides all that is of an older version.
    pub fn goes_by(record: RecordRef<'_>, watermark: u64) -> bool {
        record.latest() <= watermark
            && watermark > 0
            && match record.kind() {
                Kind::Tombstone | Kind::Superseded => true,
                Kind::Value => record.expiry_ms() != 0 && record.expiry_time() < watermark,
            }
    }

    /// Up to where users' records may go now.
    pub(crate) fn reached(&self) -> Arc<Reached> {
        match &self.of_data {
            OfData::Never => Arc::default(),
            OfData::Alone(after) => {
                let micros = (self.wall_micros)().saturating_sub(*after);
                let time = micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS;
                Arc::new(Reached::of(time.checked_sub(1), 1))
            }
            OfData::Proven(watermarks) => watermarks.reached(),
        }
    }
}

impl Watermarks {
    fn of(&self, partition: u16) -> u64 {
        let times = self.times.get();
        times.map_or(0, |times| times[usize::from(partition)].load(Ordering::Relaxed))
    }

    fn reached(&self) -> Arc<Reached> {
        let Some(times) = self.times.get() else { return Arc::default() };
        let changes = self.changes.load(Ordering::Acquire);
        let mut last = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != changes {
            let held = self.held.load(Ordering::Relaxed);
            let risen = times.iter().map(|time| time.load(Ordering::Relaxed));
            *last = (changes, Arc::new(Reached::of(risen.filter(|time| *time > 0), held)));
        }
        Arc::clone(&last.1)
    }
}

/// How many partitions have come how far, to tell how much of a table may go.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Watermarks, ascending, each with the number of partitions that have a lower one.
    steps: Vec<(u64, u32)>,
    /// Those with any.
    risen: u32,
    held: u32,
}

impl Reached {
    fn of(watermarks: impl IntoIterator<Item = u64>, held: u32) -> Self {
        let mut counts = BTreeMap::new();
        for watermark in watermarks {
            *counts.entry(watermark).or_insert(0) += 1;
        }
        let mut reached = Self { held, ..Self::default() };
        for (watermark, count) in counts {
            reached.steps.push((watermark, reached.risen));
            reached.risen += count;
        }
        reached
    }

    /// How many partitions have come to a time.
    pub(crate) fn partitions(&self, time: u64) -> u32 {
        let at = self.steps.partition_point(|(watermark, _)| *watermark < time);
        self.risen - self.steps.get(at).map_or(self.risen, |(_, below)| *below)
    }

    /// Which part of the partitions that had not come to a time, but for so many, has by now.
    pub(crate) fn part(&self, time: u64, before: u32) -> f64 {
        let since = self.partitions(time).saturating_sub(before);
        let all = self.held.max(self.risen).saturating_sub(before);
        f64::from(since) / f64::from(all.max(1))
    }

    /// How far the first of them has come; `None` if nothing may go.
    pub(crate) fn greatest(&self) -> Option<u64> {
        self.steps.last().map(|(watermark, _)| *watermark)
    }
}

#[cfg(test)]
impl PurgeRule {
    /// All that can go may go.
    pub(crate) fn always() -> Self {
        Self::alone(0, 0, || u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Fields, Record, Steps, Version};

    const MILLI: u64 = 1000 << COUNTER_BITS;

    fn record(kind: Kind, time: u64, ballot: u64, expiry_ms: u64) -> Record {
        let steps = (ballot > 0).then_some(Steps { ballot, step: 1, operations: &[] });
        let version = Version { time, origin: 1 };
        let fields = Fields { steps, expiry_ms, ..Fields::new(kind, version) };
        Record::new(b"k", &fields, b"")
    }

    /// The least wall clock, in microseconds, at which a lone node lets a record go.
    fn goes_alone_at(record: &Record) -> Option<u64> {
        let clock = Arc::new(AtomicU64::new(0));
        let wall = Arc::clone(&clock);
        let rule = PurgeRule::alone(50, 70, move || wall.load(Ordering::Relaxed));
        (0..20_000).find(|now| {
            clock.store(*now, Ordering::Relaxed);
            rule.may_purge(Space::Data, b"k", record.view())
        })
    }

    #[test]
    fn alone_the_latest_of_version_ballot_and_expiry_decides() {
        let micros = |n: u64| n << COUNTER_BITS;
        let goes = |kind, time, ballot, expiry_ms| {
            goes_alone_at(&record(kind, micros(time), micros(ballot), expiry_ms))
        };
        assert_eq!(goes(Kind::Tombstone, 5, 0, 0), Some(56));
        assert_eq!(goes(Kind::Tombstone, 5, 90, 0), Some(141));
        assert_eq!(goes(Kind::Superseded, 90, 5, 0), Some(141));
        assert_eq!(goes(Kind::Value, 5, 0, 9), Some(9051));
        assert_eq!(goes(Kind::Value, 5, 10_000, 9), Some(10_051));
        assert_eq!(goes(Kind::Value, 5, 0, u64::MAX), None);
        assert_eq!(goes(Kind::Value, 5, 0, 0), None, "it does not expire");
    }

    #[test]
    fn among_others_the_watermark_of_the_partition_decides() {
        let rule = PurgeRule::proven(|key| u16::from(key[0]), 70, || 80);
        let may = |key: &[u8], record: &Record| rule.may_purge(Space::Data, key, record.view());
        let tombstone = record(Kind::Tombstone, MILLI, 0, 0);
        assert!(!may(&[1], &tombstone), "nothing is proven");
        rule.raise(1, MILLI - 1);
        assert!(!may(&[1], &tombstone));
        rule.raise(1, MILLI);
        rule.raise(1, 7);
        assert_eq!((rule.watermark(1), rule.watermark(2)), (MILLI, 0));
        assert!(may(&[1], &tombstone) && !may(&[2], &tombstone));
        assert!(may(&[1], &record(Kind::Superseded, 3, MILLI, 0)));
        assert!(!may(&[1], &record(Kind::Tombstone, 3, MILLI + 1, 0)));
        assert!(!may(&[1], &record(Kind::Tombstone, MILLI + 1, 3, 0)), "it hides what is newer");
        let value = |time, expiry_ms| record(Kind::Value, time, 0, expiry_ms);
        assert!(!may(&[1], &value(1, 0)) && !may(&[1], &value(1, 1)));
        rule.raise(1, MILLI + 1);
        assert!(may(&[1], &value(1, 1)) && !may(&[1], &value(MILLI + 2, 1)));
    }

    #[test]
    fn other_spaces_have_rules_of_their_own() {
        let value = record(Kind::Value, 0, 0, 1);
        let tombstone = record(Kind::Tombstone, 9 << COUNTER_BITS, 0, 0);
        for (rule, now) in [
            (PurgeRule::alone(50, 70, || 80), "alone"),
            (PurgeRule::proven(|_| 0, 70, || 80), "among others"),
        ] {
            rule.raise(0, u64::MAX);
            let may = |space, record: &Record| rule.may_purge(space, b"k", record.view());
            assert!(may(Space::Hints, &tombstone) && !may(Space::Hints, &value), "{now}");
            assert!(may(Space::Idempotency, &tombstone), "{now}: 71 microseconds old");
            assert!(!may(Space::Idempotency, &record(Kind::Value, 10 << COUNTER_BITS, 0, 0)));
            assert_eq!(may(Space::Node, &tombstone), now == "alone");
            assert!(!may(Space::Node, &value));
        }
        let never = PurgeRule::never();
        assert!(!never.may_purge(Space::Hints, b"k", tombstone.view()));
    }

    #[test]
    fn how_far_partitions_have_come_is_counted() {
        let rule = PurgeRule::proven(|_| 0, 0, || 0);
        assert_eq!((rule.reached().part(0, 0), rule.reached().greatest()), (0.0, None));
        rule.set_held(8);
        for (partition, time) in [(3, 5), (4, 9), (60_000, 9), (7, 20)] {
            rule.raise(partition, time);
        }
        let counts = [0, 5, 6, 9, 10, 20, 21].map(|time| rule.reached().partitions(time));
        assert_eq!(counts, [4, 4, 3, 3, 1, 1, 0]);
        assert_eq!(
            [(5, 0), (9, 0), (5, 2), (5, 4)].map(|(t, b)| rule.reached().part(t, b)),
            [0.5, 0.375, 1.0 / 3.0, 0.0]
        );
        rule.raise(3, 20);
        assert_eq!(rule.reached().part(20, 0), 0.25);
        assert_eq!(rule.reached().greatest(), Some(20));
        rule.set_held(0);
        assert_eq!(rule.reached().part(20, 0), 0.5, "there are as many as have risen");
        assert_eq!(PurgeRule::always().reached().part(1 << 60, 0), 1.0);
        assert_eq!(PurgeRule::alone(5, 0, || 5).reached().greatest(), None);
    }
}
