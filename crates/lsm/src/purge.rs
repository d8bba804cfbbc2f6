//! The purge rule: the decision which records compactions may purge. A compaction purges a record
//! only if no other record of the key exists elsewhere in the store. The store's owner creates the
//! rule and adjusts the rule while the engine runs. Records of keys placed on other nodes have
//! another rule: [`crate::orphans`].
//!
//! | the node is | user tombstones and expired values that may be purged |
//! |---|---|
//! | alone | written and expired longer ago than a set age: no older write can still arrive |
//! | in a cluster | written and expired up to the *watermark*, when all replicas were equal |
//!
//! A rule starts in cluster mode. While the owner states that the node is alone, age decides.
//!
//! Tombstones of hints may be purged at once, because no other node holds these tombstones. Entries
//! of idempotency keys are always purged by age. The owner sets the time by which the age of
//! entries is measured ([`PurgeRule::set_agreed_time`]): in a cluster, the time that most other
//! nodes' clocks show. A local clock that is ahead would purge entries that clients may still ask
//! for.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::batch::Space;
use crate::orphans::OrphanDropping;
use record::{COUNTER_BITS, Kind, RecordRef};

/// The purge rule of a store; see the module.
pub struct PurgeRule {
    user_rule: UserRecordRule,
    /// Age in microseconds at which a record of [`Space::Idempotency`] is purged.
    remembered_micros: u64,
    wall_micros: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Time that the owner last set by [`PurgeRule::set_agreed_time`], in microseconds since 1970;
    /// 0 = none yet.
    agreed_micros: AtomicU64,
    orphans: OrphanDropping,
}

impl fmt::Debug for PurgeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PurgeRule")
    }
}

/// The rule for user records.
enum UserRecordRule {
    /// Nothing is purged, in any space.
    Never,
    /// Records written up to the watermark (a version time; 0 = none) are purged. While the node is
    /// alone, records older than `after_micros` are purged instead.
    Proven { watermark: AtomicU64, after_micros: u64, is_alone: AtomicBool },
}

impl PurgeRule {
    /// Creates a rule that purges nothing.
    pub fn never() -> Self {
        Self::of(UserRecordRule::Never, 0, || 0)
    }

    /// Creates a rule for a node of a cluster, with a watermark of 0: no user record is purged
    /// until [`PurgeRule::raise_watermark`]. While the node holds the only replica
    /// ([`PurgeRule::set_only_replica`]), records older than `after_micros` are purged instead.
    /// Entries of idempotency keys are purged at the age `remembered_micros`. `wall_micros` returns
    /// the time of the local clock, in microseconds since 1970.
    pub fn with_watermark(
        after_micros: u64,
        remembered_micros: u64,
        wall_micros: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let (watermark, is_alone) = (AtomicU64::new(0), AtomicBool::new(false));
        let user_rule = UserRecordRule::Proven { watermark, after_micros, is_alone };
        Self::of(user_rule, remembered_micros, wall_micros)
    }

    fn of(
        user_rule: UserRecordRule,
        remembered_micros: u64,
        wall_micros: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let (wall_micros, orphans) = (Box::new(wall_micros), OrphanDropping::default());
        let agreed_micros = AtomicU64::new(0);
        Self { user_rule, remembered_micros, wall_micros, agreed_micros, orphans }
    }

    /// Creates a rule for a node that holds the only replica. The parameters are those of
    /// [`PurgeRule::with_watermark`].
    pub fn for_only_replica(
        after_micros: u64,
        remembered_micros: u64,
        wall_micros: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let rule = Self::with_watermark(after_micros, remembered_micros, wall_micros);
        rule.set_only_replica(true);
        rule
    }

    /// States whether this node holds the only replica. The owner must make that fact durable
    /// before it passes true, and must pass false before it writes to another replica: after false,
    /// compactions purge user records by the watermark; only entries of idempotency keys are still
    /// purged by age.
    pub fn set_only_replica(&self, only: bool) {
        if let UserRecordRule::Proven { is_alone, .. } = &self.user_rule {
            is_alone.store(only, Ordering::Release);
        }
    }

    /// Raises the watermark to `time`, a version time; a lower time has no effect. Compactions
    /// apply the watermark at once, so the owner must make the watermark durable before the call.
    /// The call has no effect on a rule that purges nothing.
    pub fn raise_watermark(&self, time: u64) {
        if let UserRecordRule::Proven { watermark, .. } = &self.user_rule {
            watermark.fetch_max(time, Ordering::Relaxed);
        }
    }

    /// Sets the time that most other nodes' clocks show, or that a node alone is certain of, in
    /// microseconds since 1970. The age of idempotency entries is measured by this time, or by the
    /// local clock if the local clock is behind. Before the first call no entry is purged.
    pub fn set_agreed_time(&self, micros: u64) {
        self.agreed_micros.store(micros, Ordering::Relaxed);
    }

    /// Age in microseconds at which user records are purged; `None` = the watermark decides.
    fn purge_age(&self) -> Option<u64> {
        match &self.user_rule {
            UserRecordRule::Proven { after_micros, is_alone, .. }
                if is_alone.load(Ordering::Acquire) =>
            {
                Some(*after_micros)
            }
            _ => None,
        }
    }

    /// The watermark; 0 = nothing is purged by a watermark.
    pub fn watermark(&self) -> u64 {
        match &self.user_rule {
            UserRecordRule::Proven { watermark, .. } => watermark.load(Ordering::Relaxed),
            UserRecordRule::Never => 0,
        }
    }

    /// Returns true if the rule permits the purge of the record. The engine also requires that no
    /// other record of the key exists elsewhere in the store.
    #[inline]
    pub fn may_purge(&self, space: Space, record: RecordRef<'_>) -> bool {
        // Fast path: nearly all records are values without expiry.
        let expires = space == Space::Data && record.expiry_ms() != 0;
        let is_purge_candidate =
            record.kind() != Kind::Value || expires || space == Space::Idempotency;
        is_purge_candidate && self.allows(space, record)
    }

    fn allows(&self, space: Space, record: RecordRef<'_>) -> bool {
        let is_older_by = |now: u64, micros: u64| {
            let latest = record.latest().max(record.expiry_time()) >> COUNTER_BITS;
            latest.saturating_add(micros) < now
        };
        let wall = || (self.wall_micros)();
        let agreed = || wall().min(self.agreed_micros.load(Ordering::Relaxed));
        if matches!(self.user_rule, UserRecordRule::Never) {
            return false;
        }
        match (space, self.purge_age()) {
            (Space::Hints, _) => true,
            (Space::Idempotency, _) => is_older_by(agreed(), self.remembered_micros),
            (_, Some(after)) => is_older_by(wall(), after),
            (Space::Data, None) => Self::is_purgeable_at(record, self.watermark()),
            (Space::Node | Space::Conditions, None) => false,
        }
    }

    /// Returns true if `watermark` permits the purge of a user record. The result depends only on
    /// the record and the watermark, so all replicas get the same result.
    ///
    /// A record of a conditional write stays until the watermark has passed both its version and
    /// its ballot, because it hides all older versions. The ballot can be older than its version if
    /// the version came from a clock that was ahead.
    pub fn is_purgeable_at(record: RecordRef<'_>, watermark: u64) -> bool {
        record.latest() <= watermark
            && watermark > 0
            && match record.kind() {
                Kind::Tombstone | Kind::Superseded => true,
                Kind::Value => record.expiry_ms() != 0 && record.expiry_time() < watermark,
            }
    }

    /// Starts dropping orphaned records: user records that are not placed on this node according to
    /// `is_placed`, which gets the key and the record's number of copies. A compaction of the whole
    /// store that starts afterwards
    /// ([`Db::request_compaction_anew`](crate::Db::request_compaction_anew)) removes all orphaned
    /// records that existed at its start.
    ///
    /// Until [`PurgeRule::is_dropping`] returns false, the owner must not store records of a key
    /// that `is_placed` rejects, and no such key may become placed here: a compaction step that
    /// checked the key earlier would drop a record on which the owner has relied since. If the
    /// owner stores such a record anyway, the record may stay.
    ///
    /// A further call replaces `is_placed` for all compaction steps that start after the call.
    pub fn drop_orphans(&self, is_placed: impl Fn(&[u8], u8) -> bool + Send + Sync + 'static) {
        self.orphans.begin(Box::new(is_placed));
    }

    /// Stops dropping orphaned records in new compaction steps. A step in progress may still drop
    /// orphaned records.
    pub fn stop_dropping(&self) {
        self.orphans.end();
    }

    /// Returns true while orphaned records may be dropped, including by a last step in progress.
    pub fn is_dropping(&self) -> bool {
        self.orphans.is_dropping()
    }

    pub(crate) fn orphans(&self) -> &OrphanDropping {
        &self.orphans
    }

    /// Purge limit: the version time up to which user records may be purged now; `None` = no user
    /// record may be purged.
    pub(crate) fn purge_limit(&self) -> Option<u64> {
        let Some(after) = self.purge_age() else {
            return Some(self.watermark()).filter(|time| *time > 0);
        };
        let micros = (self.wall_micros)().saturating_sub(after);
        let time = micros.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS;
        time.checked_sub(1)
    }
}

#[cfg(test)]
impl PurgeRule {
    /// Creates a rule that purges everything that can be purged.
    pub(crate) fn always() -> Self {
        Self::for_only_replica(0, 0, || u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use record::{Fields, Record, Version};

    const MILLI: u64 = 1000 << COUNTER_BITS;

    fn record(kind: Kind, time: u64, ballot: u64, expiry_ms: u64) -> Record {
        let version = Version { time, origin: 1 };
        let fields = Fields { ballot, step: 1, expiry_ms, ..Fields::new(kind, version) };
        Record::new(b"k", &fields, b"")
    }

    /// The earliest wall clock time, in microseconds, at which the rule of a node alone purges a
    /// record.
    fn earliest_purge_alone(record: &Record) -> Option<u64> {
        let clock = Arc::new(AtomicU64::new(0));
        let wall = Arc::clone(&clock);
        let rule = PurgeRule::for_only_replica(50, 70, move || wall.load(Ordering::Relaxed));
        (0..20_000).find(|now| {
            clock.store(*now, Ordering::Relaxed);
            rule.may_purge(Space::Data, record.view())
        })
    }

    #[test]
    fn alone_the_latest_of_version_ballot_and_expiry_decides() {
        let micros = |n: u64| n << COUNTER_BITS;
        let earliest_purge = |kind, time, ballot, expiry_ms| {
            earliest_purge_alone(&record(kind, micros(time), micros(ballot), expiry_ms))
        };
        assert_eq!(earliest_purge(Kind::Tombstone, 5, 0, 0), Some(56));
        assert_eq!(earliest_purge(Kind::Tombstone, 5, 90, 0), Some(141));
        assert_eq!(earliest_purge(Kind::Superseded, 90, 5, 0), Some(141));
        assert_eq!(earliest_purge(Kind::Value, 5, 0, 9), Some(9051));
        assert_eq!(earliest_purge(Kind::Value, 5, 10_000, 9), Some(10_051));
        assert_eq!(earliest_purge(Kind::Value, 5, 0, u64::MAX), None);
        assert_eq!(earliest_purge(Kind::Value, 5, 0, 0), None, "it does not expire");
    }

    #[test]
    fn in_a_cluster_the_watermark_decides() {
        let rule = PurgeRule::with_watermark(50, 70, || 80);
        let may = |record: &Record| rule.may_purge(Space::Data, record.view());
        let tombstone = record(Kind::Tombstone, MILLI, 0, 0);
        assert!(!may(&tombstone), "nothing is proven");
        assert_eq!((rule.watermark(), rule.purge_limit()), (0, None));
        rule.raise_watermark(MILLI - 1);
        assert!(!may(&tombstone));
        rule.raise_watermark(MILLI);
        rule.raise_watermark(7);
        assert_eq!((rule.watermark(), rule.purge_limit()), (MILLI, Some(MILLI)));
        assert!(may(&tombstone));
        assert!(may(&record(Kind::Superseded, 3, MILLI, 0)));
        assert!(!may(&record(Kind::Tombstone, 3, MILLI + 1, 0)));
        assert!(!may(&record(Kind::Tombstone, MILLI + 1, 3, 0)), "it hides what is newer");
        let value = |time, expiry_ms| record(Kind::Value, time, 0, expiry_ms);
        assert!(!may(&value(1, 0)) && !may(&value(1, 1)));
        rule.raise_watermark(MILLI + 1);
        assert!(may(&value(1, 1)) && !may(&value(MILLI + 2, 1)));
    }

    #[test]
    fn once_other_nodes_join_nothing_is_purged_by_age() {
        let rule = PurgeRule::with_watermark(50, 70, || 80);
        let tombstone = record(Kind::Tombstone, 3 << COUNTER_BITS, 0, 0);
        let may = || {
            [Space::Data, Space::Conditions].map(|space| rule.may_purge(space, tombstone.view()))
        };
        assert_eq!(may(), [false; 2], "nobody said that it is alone");
        rule.set_only_replica(true);
        assert_eq!((may(), rule.purge_limit()), ([true; 2], Some((30 << COUNTER_BITS) - 1)));
        rule.raise_watermark(2 << COUNTER_BITS);
        rule.set_only_replica(false);
        assert_eq!((may(), rule.purge_limit()), ([false; 2], Some(2 << COUNTER_BITS)));
    }

    #[test]
    fn other_spaces_have_rules_of_their_own() {
        let value = record(Kind::Value, 0, 0, 1);
        let tombstone = record(Kind::Tombstone, 9 << COUNTER_BITS, 0, 0);
        for (rule, now) in [
            (PurgeRule::for_only_replica(50, 70, || 80), "alone"),
            (PurgeRule::with_watermark(50, 70, || 80), "among others"),
        ] {
            rule.raise_watermark(u64::MAX);
            rule.set_agreed_time(80);
            let may = |space, record: &Record| rule.may_purge(space, record.view());
            assert!(may(Space::Hints, &tombstone) && !may(Space::Hints, &value), "{now}");
            assert!(may(Space::Idempotency, &tombstone), "{now}: 71 microseconds old");
            assert!(!may(Space::Idempotency, &record(Kind::Value, 10 << COUNTER_BITS, 0, 0)));
            assert_eq!(may(Space::Node, &tombstone), now == "alone");
            assert!(!may(Space::Node, &value));
        }
        let never = PurgeRule::never();
        assert!(!never.may_purge(Space::Hints, tombstone.view()));
    }

    #[test]
    fn a_clock_that_is_ahead_purges_no_idempotency_key() {
        let rule = PurgeRule::with_watermark(50, 70, || 900);
        let entry = record(Kind::Value, 9 << COUNTER_BITS, 0, 0);
        let may = || rule.may_purge(Space::Idempotency, entry.view());
        assert!(!may(), "nobody was compared with");
        rule.set_agreed_time(79);
        assert!(!may(), "by the others' clocks it is young enough");
        rule.set_agreed_time(80);
        assert!(may());
        let behind = PurgeRule::with_watermark(50, 70, || 79);
        behind.set_agreed_time(80);
        assert!(!behind.may_purge(Space::Idempotency, entry.view()), "nor do others' clocks");
        rule.set_only_replica(true);
        rule.set_agreed_time(79);
        assert!(!may(), "alone its owner says how much time has passed");
        rule.set_agreed_time(80);
        assert!(may());
    }

    #[test]
    fn a_purge_limit_is_given_only_while_records_may_be_purged() {
        assert_eq!(
            PurgeRule::always().purge_limit(),
            Some((u64::MAX >> COUNTER_BITS << COUNTER_BITS) - 1)
        );
        assert_eq!(PurgeRule::for_only_replica(5, 0, || 5).purge_limit(), None);
        assert_eq!(PurgeRule::never().purge_limit(), None);
    }
}
