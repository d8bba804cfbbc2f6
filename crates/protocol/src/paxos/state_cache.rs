//! The leader cache, which saves a round trip. After a conditional write, the key's leader caches
//! the newest record, which a majority holds, and the next ballot, which the same majority has
//! promised. The key's next write continues from them without new promises.
//!
//! ```text
//!  Prepare b ─▶ store under b ─▶ answered ─▶ store under b + 1 ─▶ answered ─▶ b + 2 …
//!                                  └─ kept ─┘                       └─ kept ─┘
//! ```
//!
//! No other coordinator is promised a ballot between these ballots, because prepared ballots are
//! spaced apart ([`Clock::issue_ballot`](crate::Clock::issue_ballot)). Plain writes need no
//! promises, but a replica that holds a plain write refuses the next record, which would precede
//! that write. So either a majority stores the next record, or promises are requested after all. No
//! request is answered from the cache alone.
//!
//! Source: D. Rystsov, *CASPaxos: Replicated State Machines without logs* (2018), section 2.2.1,
//! the one-round-trip optimization. There, each stored record also promises the next ballot; here,
//! one promise covers a range of ballots.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::next_ballot;
use record::Record;

/// The largest number of cached keys: with at most [`MOST_BYTES`] for each key and its record, the
/// cache takes at most 4 MiB.
const MOST: usize = 4096;

/// The largest length of a cached key and its record, in bytes. For longer records, the saved round
/// trip matters less than the transfer.
const MOST_BYTES: usize = 1024;

/// The age from which promises are requested again, in microseconds. Ballots are also times, and
/// must stay near those of other writes, which replicas remember for eight seconds.
const MOST_MICROS: u64 = 5_000_000;

/// The cached state of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedState {
    /// The newest record.
    pub(crate) record: Record,
    /// A promised ballot under which no record is stored yet.
    pub(crate) ballot: u64,
    /// The time at which the promises were requested, by the monotonic clock, in microseconds.
    pub(crate) since: u64,
    /// The placement of the promises: a key's replicas may change with it.
    pub(crate) placement: u64,
}

#[derive(Debug, Default)]
struct CacheEntries {
    by_key: HashMap<Arc<[u8]>, CachedState, BuildHasherDefault<DefaultHasher>>,
    /// Keys in insertion order, each with its ballot. A key stays in this list after its entry was
    /// removed.
    order: VecDeque<(Arc<[u8]>, u64)>,
}

/// The cached states of all keys, shared by the node's loops. Only the holder of a key's lock
/// removes the key's entry.
#[derive(Debug, Default)]
pub(crate) struct StateCache {
    all: Mutex<CacheEntries>,
}

impl CachedState {
    /// Returns the state from which the next write continues, after `record` was stored under the
    /// promised `ballot`; `None` = no promised ballot is left.
    pub(crate) fn after(record: Record, ballot: u64, since: u64, placement: u64) -> Option<Self> {
        next_ballot(ballot).map(|ballot| Self { record, ballot, since, placement })
    }
}

impl StateCache {
    /// Inserts an entry, unless it is longer than [`MOST_BYTES`]. The record is copied, because it
    /// may be a slice of a long message or block, which the cache would keep in memory.
    pub(crate) fn put(&self, key: &[u8], mut kept: CachedState) {
        if key.len() + kept.record.byte_len() > MOST_BYTES {
            return;
        }
        kept.record = kept.record.view().to_record();
        let key: Arc<[u8]> = key.into();
        let mut all = self.all.lock();
        all.order.push_back((Arc::clone(&key), kept.ballot));
        all.by_key.insert(key, kept);
        if all.order.len() > MOST
            && let Some((key, ballot)) = all.order.pop_front()
            && all.by_key.get(&key).is_some_and(|kept| kept.ballot == ballot)
        {
            all.by_key.remove(&key);
        }
        assert!(all.order.len() <= MOST, "each that is added lets one go");
        assert!(all.by_key.len() <= all.order.len(), "whatever is kept is in the order too");
    }

    /// Removes a key's entry, and returns it; `None` = there is none, or it is too old or of
    /// another placement.
    pub(crate) fn take(&self, key: &[u8], mono: u64, placement: u64) -> Option<CachedState> {
        let mut all = self.all.lock();
        let is_of_use = |kept: &CachedState| {
            kept.placement == placement && mono.saturating_sub(kept.since) < MOST_MICROS
        };
        all.by_key.remove(key).filter(is_of_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use record::{Fields, Kind, Version};

    fn cached_state(ballot: u64, bytes: usize) -> CachedState {
        let version = Version { time: 5, origin: 1 };
        let fields = Fields { ballot, ..Fields::new(Kind::Value, version) };
        let record = Record::new(b"k", &fields, &vec![0; bytes]);
        CachedState::after(record, ballot, 7, 1).unwrap()
    }

    #[test]
    fn a_cached_state_is_taken_once() {
        let leader_cache = StateCache::default();
        leader_cache.put(b"k", cached_state(4096, 9));
        leader_cache.put(b"k", cached_state(4097, 9));
        assert_eq!(leader_cache.take(b"l", 8, 1), None);
        assert_eq!(leader_cache.take(b"k", 8, 1).unwrap().ballot, 4098);
        assert_eq!(leader_cache.take(b"k", 8, 1), None);
    }

    #[test]
    fn a_cached_state_copies_what_it_needs_of_a_long_message() {
        let (leader_cache, mut of_message) = (StateCache::default(), cached_state(4096, 9));
        let record = of_message.record.clone();
        let message = Bytes::from([record.raw(), &[0; 64 << 10]].concat());
        of_message.record = Record::parse(message.slice(..record.byte_len())).unwrap();
        leader_cache.put(b"k", of_message);
        assert!(message.is_unique(), "the message is not kept with it");
        assert_eq!(leader_cache.take(b"k", 8, 1).unwrap().record, record);
    }

    #[test]
    fn old_states_and_states_of_another_placement_are_not_returned() {
        let leader_cache = StateCache::default();
        leader_cache.put(b"k", cached_state(4096, 9));
        assert_eq!(leader_cache.take(b"k", 8, 2), None);
        leader_cache.put(b"k", cached_state(4096, 9));
        assert_eq!(leader_cache.take(b"k", 7 + MOST_MICROS, 1), None);
        leader_cache.put(b"k", cached_state(4096, 9));
        assert!(leader_cache.take(b"k", 6 + MOST_MICROS, 1).is_some());
    }

    #[test]
    fn the_cache_is_bounded() {
        let leader_cache = StateCache::default();
        leader_cache.put(b"k", cached_state(4096, MOST_BYTES));
        assert_eq!(leader_cache.take(b"k", 8, 1), None);
        leader_cache.put(b"first", cached_state(4096, 9));
        for n in 0..MOST as u64 {
            leader_cache.put(b"k", cached_state(n << 12, 9));
            assert!(n % 2 == 0 || leader_cache.take(b"k", 8, 1).is_some());
        }
        assert_eq!(leader_cache.take(b"first", 8, 1), None);
        let all = leader_cache.all.lock();
        assert_eq!((all.order.len(), all.by_key.len()), (MOST, 0));
    }
}
