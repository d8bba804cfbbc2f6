//! A replica's table of recently stored conditional writes. A coordinator whose try has an unknown
//! outcome queries the table if the key no longer shows the outcome.
//!
//! ```text
//!  a record with a ballot is stored ─▶ an entry for each of its operations: (key, id) ─▶ outcome
//!  query Recall (key, id, ballot of the first try) ─▶ answer: Stored, Never, Forgotten or Reused
//! ```
//!
//! Of a write with an idempotency key, the entry only shows that it is stored: the answer comes
//! from the store, where the entries last for a day.
//!
//! A write without an entry was never stored here, or its entry is gone. Entries may be gone for
//! ballots up to a bound, which grows with evictions and with changes of the placement. The table
//! is in memory only, so the bound starts at the floor of the promises, above which earlier
//! processes promised nothing (`promises.rs`).
//!
//! When the placement of keys changes, all entries are dropped, because they could prove too much.
//! While keys moved, a chosen record needed a majority of the previous replicas too. So a record
//! that a majority of the *current* replicas accepted may not be chosen, and a coordinator may have
//! been told that the write was never done.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::paxos::accepted_ballots::AcceptedBallots;
use crate::paxos::operation::{Done, Tag, are_different_requests};
use crate::transfer::idempotency_memory::Remembered;
use record::{OpHistory, Operation, Record, Version};

/// The largest number of entries (about 6 MiB): the writes of eight seconds at 8,000 writes per
/// second, the greatest rate for one key.
const MOST: usize = 65_536;

/// A replica's answer to a query about a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpLookup {
    /// The replica never stored a record with this write.
    Never,
    /// The replica has stored a record with this write.
    Stored {
        /// The ballots under which the replica accepted such records; none = it received such a
        /// record only from other replicas.
        ballots: AcceptedBallots,
        /// The outcome of the write in that record.
        done: Done,
    },
    /// The replica knows that the write was chosen, with this outcome.
    Chosen {
        /// The outcome of the write in the chosen record.
        done: Done,
    },
    /// The replica may have stored a record with this write, and may have forgotten it.
    Forgotten,
    /// The replica has stored another request with the same idempotency key.
    Reused,
}

/// The identification of a write in a coordinator's query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteIdentity {
    /// The write's id.
    pub id: u64,
    /// The digest of the client's request, if it has an idempotency key; 0 = unknown.
    pub digest: u64,
}

impl WriteIdentity {
    /// Returns the answer of a replica that has `lookup` about a write with this id and the request
    /// digest `digest`.
    pub(crate) fn lookup_unless_reused(self, digest: u64, lookup: OpLookup) -> OpLookup {
        match are_different_requests(self.digest, digest) {
            true => OpLookup::Reused,
            false => lookup,
        }
    }
}

/// A hash of the key, and the id of the write.
type Name = (u64, u64);

#[derive(Debug)]
struct Stored {
    /// The ballot of the first record that the replica accepted; 0 = it accepted none.
    ballot: u64,
    family: Version,
    step: u32,
    result: Option<i64>,
    digest: u64,
}

#[derive(Debug)]
struct RecentWritesState {
    /// The entries. The hasher has no seed, like the rest of the protocol.
    stored: HashMap<Name, Stored, BuildHasherDefault<DefaultHasher>>,
    /// Names in insertion order, each with the ballot of its record.
    order: VecDeque<(Name, u64)>,
    /// Entries with ballots up to this one may have been dropped.
    forgotten: u64,
    /// The greatest ballot of any noted record.
    greatest: u64,
    /// The epoch of the current placement.
    placed: u64,
}

/// A replica's recent conditional writes.
#[derive(Debug)]
pub(crate) struct RecentWrites {
    kept: Mutex<RecentWritesState>,
}

/// The way in which a record reached the replica that stored it, as evidence about its conditional
/// writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The replica accepted the record under the record's ballot. If a majority did, the record is
    /// chosen.
    Accept = 0,
    /// The record came from another replica in a page. It does not prove that this replica accepted
    /// it.
    Replica = 1,
    /// The record is chosen: it came as a hint, or the partition's previous replicas reported it as
    /// chosen.
    Chosen = 2,
}

impl RecentWrites {
    /// Makes an empty table. Writes with ballots up to `forgotten` may have been stored before.
    pub(crate) fn new(forgotten: u64) -> Self {
        let (stored, order) = (HashMap::default(), VecDeque::new());
        let (greatest, placed) = (0, 0);
        Self { kept: Mutex::new(RecentWritesState { stored, order, forgotten, greatest, placed }) }
    }

    /// Drops all entries, because the placement has changed with `epoch`. Writes with ballots up to
    /// `until` may have been stored before.
    pub(crate) fn forget(&self, epoch: u64, until: u64) {
        let mut kept = self.kept.lock();
        if epoch > kept.placed {
            kept.placed = epoch;
            kept.forgotten = kept.forgotten.max(kept.greatest).max(until);
            kept.stored.clear();
            kept.order.clear();
        }
    }

    /// Notes the operations of a stored record that arrived under `epoch`. `before` has the
    /// operations of the replaced record: all of them were noted, or are known to be forgotten.
    pub(crate) fn note(
        &self,
        key: &[u8],
        record: &Record,
        [before, steps]: [&OpHistory; 2],
        (via, epoch): (Via, u64),
    ) {
        let (hash, family) = (xxh3_64(key), record.version());
        let ballot = if via == Via::Accept { record.ballot() } else { 0 };
        let mut kept = self.kept.lock();
        let RecentWritesState { stored, order, forgotten, greatest, placed } = &mut *kept;
        *greatest = (*greatest).max(record.ballot());
        if epoch < *placed {
            *forgotten = (*forgotten).max(record.ballot());
            return;
        }
        for (step, operation) in steps.with_step_numbers() {
            if before.has(operation.id) {
                continue;
            }
            let Operation { id, result, digest } = *operation;
            let name = (hash, id);
            let known = stored.get(&name);
            if known.is_none() {
                order.push_back((name, record.ballot()));
            }
            // If two requests share an idempotency key, only the later one can be chosen.
            let is_newer =
                |known: &Stored| known.ballot == 0 || are_different_requests(known.digest, digest);
            if known.is_none_or(|known| ballot > 0 && is_newer(known)) {
                stored.insert(name, Stored { ballot, family, step, result, digest });
            }
        }
        while order.len() > MOST {
            if let Some((name, ballot)) = order.pop_front() {
                stored.remove(&name);
                *forgotten = (*forgotten).max(ballot);
            }
        }
        assert_eq!(
            stored.len(),
            order.len(),
            "each is in the order once, or could not be forgotten"
        );
    }

    /// Overwrites entries with the reports of the partitions' previous replicas, which know the
    /// chosen outcomes.
    pub(crate) fn correct(&self, remembered: &[Remembered]) {
        let mut kept = self.kept.lock();
        for &Remembered { key_hash, id, ballots, family, step, result, digest, .. } in remembered {
            if let Some(known) = kept.stored.get_mut(&(key_hash, id)) {
                let ballot = ballots.greatest();
                *known = Stored { ballot, family, step, result, digest };
            }
        }
    }

    /// Returns the answer about a write that was first tried under the ballot `since`.
    pub(crate) fn recall(&self, key: &[u8], asked: WriteIdentity, since: u64) -> OpLookup {
        let id = asked.id;
        let kept = self.kept.lock();
        match kept.stored.get(&(xxh3_64(key), id)) {
            Some(&Stored { ballot, family, step, result, digest }) => {
                let tag = Tag { version: family, last: Some((step, id)) };
                let done = Done::Changed { tag, result, expiry_ms: 0, fence: 0 };
                let ballots = AcceptedBallots::one(ballot);
                asked.lookup_unless_reused(digest, OpLookup::Stored { ballots, done })
            }
            None if since <= kept.forgotten => OpLookup::Forgotten,
            None => OpLookup::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{Fields, Kind};

    const NONE: OpHistory = OpHistory { step: 0, operations: Vec::new() };
    const FAMILY: Version = Version { time: 5, origin: 1 };

    fn record(ballot: u64) -> Record {
        let fields = Fields { ballot, ..Fields::new(Kind::Value, FAMILY) };
        Record::new(b"k", &fields, &[])
    }

    fn steps(step: u32, ids: &[u64]) -> OpHistory {
        let operation = |id: &u64| Operation { id: *id, result: Some(*id as i64), digest: 0 };
        OpHistory { step, operations: ids.iter().map(operation).collect() }
    }

    fn stored_lookup(ballot: u64, step: u32, id: u64) -> OpLookup {
        let tag = Tag { version: FAMILY, last: Some((step, id)) };
        let (result, expiry_ms, fence) = (Some(id as i64), 0, 0);
        let ballots = AcceptedBallots::one(ballot);
        OpLookup::Stored { ballots, done: Done::Changed { tag, result, expiry_ms, fence } }
    }

    fn look_up(recent: &RecentWrites, key: &[u8], id: u64, since: u64) -> OpLookup {
        recent.recall(key, WriteIdentity { id, digest: 0 }, since)
    }

    fn of_request(step: u32, id: u64, digest: u64) -> OpHistory {
        let operations = vec![Operation { id, result: Some(id as i64), digest }];
        OpHistory { step, operations }
    }

    #[test]
    fn another_request_with_the_same_id_is_reported_as_reused() {
        let recent = RecentWrites::new(0);
        let told = |digest| recent.recall(b"k", WriteIdentity { id: 5, digest }, 9);
        recent.note(b"k", &record(10), [&NONE, &of_request(1, 5, 7)], (Via::Accept, 1));
        assert_eq!(
            [told(7), told(0), told(8)],
            [stored_lookup(10, 1, 5), stored_lookup(10, 1, 5), OpLookup::Reused]
        );
        recent.note(b"k", &record(20), [&NONE, &of_request(1, 5, 8)], (Via::Replica, 1));
        assert_eq!(told(7), stored_lookup(10, 1, 5), "it proves nothing");
        recent.note(b"k", &record(30), [&NONE, &of_request(2, 5, 8)], (Via::Accept, 1));
        assert_eq!([told(7), told(8)], [OpLookup::Reused, stored_lookup(30, 2, 5)]);
        recent.note(b"k", &record(40), [&NONE, &of_request(3, 5, 0)], (Via::Accept, 1));
        assert_eq!(told(8), stored_lookup(30, 2, 5), "of an unknown request the first one is told");
    }

    #[test]
    fn the_first_storing_of_a_write_is_reported() {
        let recent = RecentWrites::new(10);
        recent.note(b"k", &record(20), [&NONE, &steps(3, &[1, 2])], (Via::Accept, 1));
        recent.note(b"k", &record(30), [&NONE, &steps(4, &[1, 2, 3])], (Via::Accept, 1));
        let told = |id| look_up(&recent, b"k", id, 15);
        assert_eq!(
            [told(1), told(2), told(3)],
            [stored_lookup(20, 2, 1), stored_lookup(20, 3, 2), stored_lookup(30, 4, 3)]
        );
        assert_eq!((told(4), look_up(&recent, b"l", 1, 15)), (OpLookup::Never, OpLookup::Never));
        assert_eq!(
            look_up(&recent, b"k", 4, 10),
            OpLookup::Forgotten,
            "it may be of an earlier life"
        );
    }

    #[test]
    fn operations_of_the_replaced_record_are_not_noted_again() {
        let recent = RecentWrites::new(0);
        let (before, after) = (steps(3, &[1, 2]), steps(4, &[1, 5, 3]));
        recent.note(b"k", &record(20), [&before, &after], (Via::Accept, 1));
        let told = |id| look_up(&recent, b"k", id, 15);
        assert_eq!(
            [told(1), told(5), told(3)],
            [OpLookup::Never, stored_lookup(20, 3, 5), stored_lookup(20, 4, 3)]
        );
    }

    #[test]
    fn a_record_of_another_replica_proves_nothing() {
        let recent = RecentWrites::new(0);
        recent.note(b"k", &record(20), [&NONE, &steps(1, &[1])], (Via::Replica, 1));
        assert_eq!(look_up(&recent, b"k", 1, 15), stored_lookup(0, 1, 1));
        recent.note(b"k", &record(30), [&NONE, &steps(1, &[1])], (Via::Accept, 1));
        assert_eq!(look_up(&recent, b"k", 1, 15), stored_lookup(30, 1, 1));
    }

    #[test]
    fn evicted_entries_are_reported_as_forgotten() {
        let recent = RecentWrites::new(0);
        for id in 1..=MOST as u64 + 2 {
            recent.note(
                b"k",
                &record(100 + id),
                [&NONE, &steps(id as u32, &[id])],
                (Via::Accept, 1),
            );
        }
        assert_eq!(look_up(&recent, b"k", 2, 102), OpLookup::Forgotten);
        assert_eq!(look_up(&recent, b"k", 3, 102), stored_lookup(103, 3, 3));
        assert_eq!(look_up(&recent, b"k", 2, 103), OpLookup::Never);
    }

    #[test]
    fn entries_of_an_earlier_placement_are_forgotten() {
        let recent = RecentWrites::new(0);
        recent.note(b"k", &record(20), [&NONE, &steps(1, &[1])], (Via::Accept, 3));
        recent.forget(4, 30);
        assert_eq!(look_up(&recent, b"k", 1, 20), OpLookup::Forgotten);
        assert_eq!(
            look_up(&recent, b"k", 2, 30),
            OpLookup::Forgotten,
            "others may have accepted it"
        );
        assert_eq!(look_up(&recent, b"k", 2, 31), OpLookup::Never);
        // The record's write began before the placement changed.
        recent.note(b"k", &record(40), [&NONE, &steps(1, &[3])], (Via::Accept, 3));
        assert_eq!(look_up(&recent, b"k", 3, 40), OpLookup::Forgotten);
        recent.note(b"k", &record(50), [&NONE, &steps(1, &[4])], (Via::Accept, 4));
        assert_eq!(look_up(&recent, b"k", 4, 41), stored_lookup(50, 1, 4));
        // Another event loop reports the same change.
        recent.forget(4, 99);
        assert_eq!(look_up(&recent, b"k", 4, 41), stored_lookup(50, 1, 4));
        recent.forget(5, 0);
        assert_eq!(look_up(&recent, b"k", 5, 50), OpLookup::Forgotten);
    }
}
