//! Which conditional writes this node, as a replica, has stored lately: so that a coordinator whose
//! try was lost can learn what became of it, although the key itself does not tell any more.
//!
//! ```text
//!  a record with a ballot is stored ─▶ each operation in it: (key, id) ─▶ step, sum
//!  Recall (key, id, ballot of the first try) ─▶ Stored │ Never │ Forgotten
//! ```
//!
//! What is not noted was never stored here, unless it may have been forgotten: all that was noted
//! under a ballot up to a bound, which rises as old entries go, and begins as the floor of promises
//! does, for this is in memory only.
//!
//! Where keys are placed otherwise, all of before is forgotten. What a majority of the replicas of
//! *now* accepted need not have been chosen: while keys move, a majority of those of before had to
//! accept it too, and who was asked meanwhile may have been told that it never was.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::clock::Version;
use crate::conditional::{Done, Tag};
use crate::record::{Record, Steps};
use crate::remembered::Remembered;

/// So many are kept: eight seconds of the 8,000 in a second that one key takes. Some 6 MiB.
const MOST: usize = 65_536;

/// What a replica knows of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recalled {
    /// It never stored a record with it.
    Never,
    /// It has stored one.
    Stored {
        /// Under this ballot, the first time; 0 = it came from another replica, not from its
        /// coordinator.
        ballot: u64,
        /// What came of the write in that record.
        done: Done,
    },
    /// It may have stored one.
    Forgotten,
}

/// A hash of the key, and the write's id.
type Name = (u64, u64);

#[derive(Debug)]
struct Stored {
    ballot: u64,
    family: Version,
    step: u32,
    result: Option<i64>,
}

#[derive(Debug)]
struct Kept {
    /// With a hasher without a seed, as all of the protocol.
    stored: HashMap<Name, Stored, BuildHasherDefault<DefaultHasher>>,
    /// In the order of noting, each with the ballot of its record.
    order: VecDeque<(Name, u64)>,
    /// What was noted up to this ballot may be forgotten.
    forgotten: u64,
    /// The greatest ballot of what was noted.
    greatest: u64,
    /// Since this epoch keys are placed as they are.
    placed: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Recent {
    kept: Mutex<Kept>,
}

/// How a record came to a replica that has stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// It was accepted under its ballot: if a majority has it so, it is chosen.
    Accept = 0,
    /// In a page or as a hint, from a replica that held it: that proves nothing of this one.
    Replica = 1,
    /// Those that had the partition before this one have reported that it was chosen there.
    Chosen = 2,
}

impl Recent {
    /// `forgotten`: all ballots up to this one may have been stored before.
    pub(crate) fn new(forgotten: u64) -> Self {
        let (stored, order) = (HashMap::default(), VecDeque::new());
        let (greatest, placed) = (0, 0);
        Self { kept: Mutex::new(Kept { stored, order, forgotten, greatest, placed }) }
    }

    /// From this epoch on keys are placed otherwise. All that was tried under a ballot up to
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

    /// A record is stored, which was taken in under `epoch`. `before`: the steps of the one that
    /// was held until then, of which all operations were noted, or are known to be forgotten.
    pub(crate) fn note(
        &self,
        key: &[u8],
        record: &Record,
        [before, steps]: [&Steps; 2],
        (via, epoch): (Via, u64),
    ) {
        let (hash, family) = (xxh3_64(key), record.rank.version);
        let ballot = if via == Via::Accept { record.rank.ballot } else { 0 };
        let mut kept = self.kept.lock();
        let Kept { stored, order, forgotten, greatest, placed } = &mut *kept;
        *greatest = (*greatest).max(record.rank.ballot);
        if epoch < *placed {
            *forgotten = (*forgotten).max(record.rank.ballot);
            return;
        }
        for (step, operation) in steps.numbered() {
            if before.has(operation.id) {
                continue;
            }
            let (name, result) = ((hash, operation.id), operation.result);
            let known = stored.get(&name);
            if known.is_none() {
                order.push_back((name, record.rank.ballot));
            }
            if known.is_none_or(|known| known.ballot == 0 && ballot > 0) {
                stored.insert(name, Stored { ballot, family, step, result });
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

    /// What is remembered of writes is known better, by those that had their partitions before.
    pub(crate) fn correct(&self, remembered: &[Remembered]) {
        let mut kept = self.kept.lock();
        for &Remembered { key_hash, id, ballot, family, step, result, .. } in remembered {
            if let Some(known) = kept.stored.get_mut(&(key_hash, id)) {
                *known = Stored { ballot, family, step, result };
            }
        }
    }

    /// What is known of a write that was first tried under `since`.
    pub(crate) fn recall(&self, key: &[u8], id: u64, since: u64) -> Recalled {
        let kept = self.kept.lock();
        match kept.stored.get(&(xxh3_64(key), id)) {
            Some(&Stored { ballot, family, step, result }) => {
                let tag = Tag { version: family, last: Some((step, id)) };
                Recalled::Stored { ballot, done: Done::Changed { tag, result, expiry_ms: 0 } }
            }
            None if since <= kept.forgotten => Recalled::Forgotten,
            None => Recalled::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::record::{Kind, Operation, Rank};

    const NONE: Steps = Steps { step: 0, operations: Vec::new() };
    const FAMILY: Version = Version { time: 5, origin: 1 };

    fn record(ballot: u64) -> Record {
        let rank = Rank { version: FAMILY, ballot, kind: Kind::Value, check: 0 };
        Record { rank, copies: 0, bytes: Bytes::new() }
    }

    fn steps(step: u32, ids: &[u64]) -> Steps {
        let operation = |id: &u64| Operation { id: *id, result: Some(*id as i64) };
        Steps { step, operations: ids.iter().map(operation).collect() }
    }

    fn stored(ballot: u64, step: u32, id: u64) -> Recalled {
        let tag = Tag { version: FAMILY, last: Some((step, id)) };
        let (result, expiry_ms) = (Some(id as i64), 0);
        Recalled::Stored { ballot, done: Done::Changed { tag, result, expiry_ms } }
    }

    #[test]
    fn what_was_stored_first_is_told() {
        let recent = Recent::new(10);
        recent.note(b"k", &record(20), [&NONE, &steps(3, &[1, 2])], (Via::Accept, 1));
        recent.note(b"k", &record(30), [&NONE, &steps(4, &[1, 2, 3])], (Via::Accept, 1));
        let told = |id| recent.recall(b"k", id, 15);
        assert_eq!(
            [told(1), told(2), told(3)],
            [stored(20, 2, 1), stored(20, 3, 2), stored(30, 4, 3)]
        );
        assert_eq!((told(4), recent.recall(b"l", 1, 15)), (Recalled::Never, Recalled::Never));
        assert_eq!(recent.recall(b"k", 4, 10), Recalled::Forgotten, "it may be of an earlier life");
    }

    #[test]
    fn what_was_held_before_is_not_noted_again() {
        let recent = Recent::new(0);
        let (before, after) = (steps(3, &[1, 2]), steps(4, &[1, 5, 3]));
        recent.note(b"k", &record(20), [&before, &after], (Via::Accept, 1));
        let told = |id| recent.recall(b"k", id, 15);
        assert_eq!(
            [told(1), told(5), told(3)],
            [Recalled::Never, stored(20, 3, 5), stored(20, 4, 3)]
        );
    }

    #[test]
    fn a_record_of_another_replica_proves_nothing() {
        let recent = Recent::new(0);
        recent.note(b"k", &record(20), [&NONE, &steps(1, &[1])], (Via::Replica, 1));
        assert_eq!(recent.recall(b"k", 1, 15), stored(0, 1, 1));
        recent.note(b"k", &record(30), [&NONE, &steps(1, &[1])], (Via::Accept, 1));
        assert_eq!(recent.recall(b"k", 1, 15), stored(30, 1, 1));
    }

    #[test]
    fn what_goes_is_known_to_be_forgotten() {
        let recent = Recent::new(0);
        for id in 1..=MOST as u64 + 2 {
            recent.note(
                b"k",
                &record(100 + id),
                [&NONE, &steps(id as u32, &[id])],
                (Via::Accept, 1),
            );
        }
        assert_eq!(recent.recall(b"k", 2, 102), Recalled::Forgotten);
        assert_eq!(recent.recall(b"k", 3, 102), stored(103, 3, 3));
        assert_eq!(recent.recall(b"k", 2, 103), Recalled::Never);
    }

    #[test]
    fn what_other_replicas_accepted_is_forgotten() {
        let recent = Recent::new(0);
        recent.note(b"k", &record(20), [&NONE, &steps(1, &[1])], (Via::Accept, 3));
        recent.forget(4, 30);
        assert_eq!(recent.recall(b"k", 1, 20), Recalled::Forgotten);
        assert_eq!(recent.recall(b"k", 2, 30), Recalled::Forgotten, "others may have accepted it");
        assert_eq!(recent.recall(b"k", 2, 31), Recalled::Never);
        // Its write had begun before.
        recent.note(b"k", &record(40), [&NONE, &steps(1, &[3])], (Via::Accept, 3));
        assert_eq!(recent.recall(b"k", 3, 40), Recalled::Forgotten);
        recent.note(b"k", &record(50), [&NONE, &steps(1, &[4])], (Via::Accept, 4));
        assert_eq!(recent.recall(b"k", 4, 41), stored(50, 1, 4));
        // Another loop sees the same.
        recent.forget(4, 99);
        assert_eq!(recent.recall(b"k", 4, 41), stored(50, 1, 4));
        recent.forget(5, 0);
        assert_eq!(recent.recall(b"k", 5, 50), Recalled::Forgotten);
    }
}
