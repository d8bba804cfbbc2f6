//! Up-to-date count of the bytes stored under a prefix: the result of the last complete count, plus
//! the changes on this node since that count.
//!
//! A change is added to the current count when it is accepted. A *lap* counts all keys again, in
//! key order and in steps; each step reads a snapshot of the store, from the lap's position on. At
//! the end of a lap, its result replaces the old count and all changes that the lap includes:
//!
//! ```text
//!  key of the change      time of the change            at the end of the lap, the change is
//!  ────────────────────────────────────────────────────────────────────────────────────────────
//!  before the position    any                           kept
//!  at or after it         between two steps             dropped: a later snapshot includes it
//!  at or after it         during a step, if it adds     kept: that step's snapshot lacks it
//!  at or after it         during a step, if it removes  dropped
//! ```
//!
//! A change during a step may also be in the next step's snapshot. An addition then counts twice,
//! and a removal that is not in the snapshot does not count: these errors only raise the count. The
//! count lacks a write that waits for the log while the snapshot is taken. The next lap corrects
//! all these errors.

use std::collections::HashMap;

use lsm::Version;
use protocol::{NodeId, PARTITIONS, Topology};

/// Accepted records that each of the two generations remembers, at 32 bytes per record. The
/// previous record of a remembered key need not be read from the store, which does not return
/// records that wait for the log.
const REMEMBERED: usize = 8192;

/// The bytes stored under a prefix.
#[derive(Debug, Default)]
pub struct Usage {
    /// Result of the last completed lap; `None` = no lap has ended.
    counted: Option<u64>,
    /// Bytes added minus bytes removed by the changes that `counted` does not include.
    since: i64,
    lap: Option<Lap>,
}

/// The progress of a lap.
#[derive(Debug, Default)]
struct Lap {
    /// The steps so far have read the keys below this key.
    position: Vec<u8>,
    /// True while a step reads the keys from `position` on.
    reads: bool,
    /// The part of `since` that the lap's result will not include.
    uncounted: i64,
    /// Bytes found so far.
    found: u64,
}

impl Usage {
    /// Adds an accepted change of a key's record by `bytes` bytes, negative if it shrinks.
    pub fn change(&mut self, key: &[u8], bytes: i64) {
        self.since = self.since.saturating_add(bytes);
        let Some(lap) = &mut self.lap else { return };
        if key < &lap.position[..] || lap.reads && bytes > 0 {
            lap.uncounted = lap.uncounted.saturating_add(bytes);
        }
    }

    /// Begins a lap. A lap that has not ended is dropped.
    pub fn begin_lap(&mut self) {
        self.lap = Some(Lap::default());
    }

    /// Begins a step, whose snapshot has just been taken: no record may be accepted between the
    /// snapshot and this call.
    pub fn begin_step(&mut self) {
        if let Some(lap) = &mut self.lap {
            lap.reads = true;
        }
    }

    /// Ends a step: the lap has read the keys below `position`, and found `found` bytes so far.
    pub fn end_step(&mut self, position: &[u8], found: u64) {
        if let Some(lap) = &mut self.lap {
            (lap.reads, lap.found) = (false, found);
            position.clone_into(&mut lap.position);
        }
    }

    /// Ends the lap with its total, in bytes.
    pub fn end_lap(&mut self, found: u64) {
        let lap = self.lap.take().unwrap_or_default();
        (self.counted, self.since) = (Some(found), lap.uncounted);
    }

    /// Returns true if at least one lap has completed.
    pub fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Returns the bytes stored; a lower bound until the first lap completes.
    pub fn stored_bytes(&self) -> u64 {
        match (self.counted, &self.lap) {
            (Some(counted), _) => counted.saturating_add_signed(self.since),
            (None, Some(lap)) => {
                let found = lap.found.saturating_add_signed(lap.uncounted);
                found.max(0u64.saturating_add_signed(self.since))
            }
            (None, None) => 0u64.saturating_add_signed(self.since),
        }
    }

    /// Returns true if a lap is urgent: no lap has completed yet, or the additions since the last
    /// lap take more than half of the bytes that were left below the `hard` limit (0 = no limit). A
    /// lap corrects for records that have expired since the last lap, and for unknown previous
    /// records.
    pub fn is_urgent(&self, hard: u64) -> bool {
        match self.counted {
            None => true,
            Some(_) if hard == 0 => false,
            Some(counted) => {
                let added = u64::try_from(self.since).unwrap_or(0);
                added > 0 && added > hard.saturating_sub(counted) / 2
            }
        }
    }
}

/// The number of partitions of which a node holds a copy, for each number of copies. Bytes on this
/// node, divided by the share of these partitions in all partitions, estimate the bytes of the
/// cluster, where each key counts once.
#[derive(Debug, Default)]
pub struct Shares {
    /// At index n: partitions that have this node among their first n + 1 replicas.
    held: Vec<u64>,
}

impl Shares {
    /// Computes the shares of a node. Visits all partitions, which takes some milliseconds.
    pub fn of(topology: &Topology, own: NodeId) -> Self {
        let mut held = vec![0; topology.nodes().min(usize::from(u8::MAX))];
        let mut replicas = Vec::new();
        for partition in 0..=u16::MAX {
            replicas.clear();
            topology.replicas(partition, u8::MAX, &mut replicas);
            if let Some(place) = replicas.iter().position(|node| *node == own) {
                held[place] += 1;
            }
        }
        let mut sum = 0;
        for held in &mut held {
            sum += *held;
            *held = sum;
        }
        Self { held }
    }

    /// Scales the bytes of the records with `copies` copies on this node to the whole cluster,
    /// where each key counts once.
    pub fn all(&self, copies: u8, bytes: u64) -> u64 {
        let last = self.held.len().saturating_sub(1);
        let held = self.held.get(usize::from(copies.max(1) - 1).min(last));
        let held = held.copied().unwrap_or(PARTITIONS as u64).max(1);
        let all = u128::from(bytes) * PARTITIONS as u128 / u128::from(held);
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// The most recently accepted records, by key hash: their versions and counted bytes. They include
/// the records that wait for the log and are therefore not visible in the store yet.
#[derive(Debug, Default)]
pub struct RecentRecords {
    newer: HashMap<u64, (Version, u64)>,
    older: HashMap<u64, (Version, u64)>,
}

impl RecentRecords {
    /// Accepts a record that counts for `bytes` bytes, and returns the change from the key's
    /// previous record. If that record is not remembered here, `before` supplies it; if `before`
    /// returns `None`, the previous record is unknown and counts as 0 bytes. A record older than
    /// the previous one changes nothing.
    pub fn accept(
        &mut self,
        key: u64,
        (version, bytes): (Version, u64),
        before: impl FnOnce() -> Option<(Version, u64)>,
    ) -> i64 {
        let known = self.newer.get(&key).or_else(|| self.older.get(&key)).copied();
        let (held, was) = known.or_else(before).unwrap_or((version, 0));
        let (version, bytes) = if held > version { (held, was) } else { (version, bytes) };
        if self.newer.len() >= REMEMBERED {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, (version, bytes));
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(bytes) - signed(was)
    }

    /// Forgets all records: counting has stopped.
    pub fn clear(&mut self) {
        (self.newer, self.older) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use protocol::Member;

    use super::*;

    #[test]
    fn a_lap_replaces_the_changes_that_it_includes_and_keeps_the_others() {
        let mut usage = Usage::default();
        assert!(!usage.is_counted() && usage.is_urgent(0));
        usage.begin_lap();
        usage.change(b"m", 10);
        assert_eq!(usage.stored_bytes(), 10, "it is at least that");
        usage.begin_step();
        usage.end_step(b"k", 500);
        assert_eq!(usage.stored_bytes(), 500, "of what was added, the walk may still come by it");
        usage.change(b"a", 7);
        usage.change(b"k", 100);
        assert_eq!(usage.stored_bytes(), 507);
        usage.end_lap(700);
        assert!(usage.is_counted());
        assert_eq!(usage.stored_bytes(), 707, "k and m are in the count, a is not");
        usage.change(b"a", -7);
        assert_eq!(usage.stored_bytes(), 700);

        // A change during a step is not in that step's snapshot.
        usage.begin_lap();
        usage.begin_step();
        usage.change(b"a", 30);
        usage.change(b"b", -20);
        usage.end_step(b"c", 0);
        usage.end_lap(1000);
        assert_eq!(usage.stored_bytes(), 1030);
        usage.begin_lap();
        usage.end_lap(980);
        assert_eq!(usage.stored_bytes(), 980);
        usage.change(b"a", -2000);
        assert_eq!(usage.stored_bytes(), 0);
    }

    #[test]
    fn a_lap_is_urgent_once_half_of_the_free_bytes_are_taken() {
        let mut usage = Usage::default();
        usage.begin_lap();
        usage.end_lap(800);
        usage.change(b"k", 100);
        assert!(!usage.is_urgent(1000) && !usage.is_urgent(0));
        usage.change(b"k", 1);
        assert!(usage.is_urgent(1000) && !usage.is_urgent(1100));
        usage.change(b"k", -101);
        assert!(!usage.is_urgent(800), "full, and nothing was added");
        usage.change(b"k", 1);
        assert!(usage.is_urgent(800));
    }

    #[test]
    fn a_record_counts_as_the_difference_to_the_record_that_it_replaces() {
        let version = |time| Version { time, origin: 1 };
        let mut accepted = RecentRecords::default();
        let unknown = || None;
        assert_eq!(accepted.accept(1, (version(5), 100), unknown), 100);
        let not_called = || unreachable!("it is known");
        assert_eq!(accepted.accept(1, (version(6), 70), not_called), -30);
        assert_eq!(accepted.accept(1, (version(6), 70), not_called), 0, "sent again");
        assert_eq!(accepted.accept(1, (version(4), 900), not_called), 0, "it is older");
        assert_eq!(accepted.accept(1, (version(7), 0), not_called), -70);
        assert_eq!(accepted.accept(1, (version(8), 0), not_called), 0, "deleted twice");
        assert_eq!(accepted.accept(2, (version(5), 10), || Some((version(4), 25))), -15);
        for key in 0..REMEMBERED as u64 {
            accepted.accept(100 + key, (version(5), 1), unknown);
        }
        assert_eq!(accepted.accept(2, (version(6), 11), not_called), 1, "the generation before");
    }

    #[test]
    fn bytes_are_scaled_by_the_share_of_partitions_held() {
        let member = |n| Member { name: format!("n{n}"), zone: String::new(), weight: 1 };
        let topology = Topology::new((0..5).map(member).collect(), 3).unwrap();
        for own in topology.ids() {
            let shares = Shares::of(&topology, own);
            for copies in [1, 3, 5] {
                let holds = |p: &u16| topology.holds(own, *p, copies);
                let held = (0..=u16::MAX).filter(holds).count() as u64;
                assert_eq!(shares.all(copies, 1000), 1000 * PARTITIONS as u64 / held, "{copies}");
            }
            assert_eq!((shares.all(5, 77), shares.all(200, 77)), (77, 77));
        }
        assert_eq!(Shares::default().all(3, 9), 9);
    }
}
