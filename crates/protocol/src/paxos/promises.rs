//! This node's promises, as a replica, to coordinators of conditional writes. A promise of a ballot
//! means that the replica stores no record of a lower ballot.
//!
//! ```text
//!  the key's partition ─▶ a bucket: the greatest ballot promised for any key of the bucket, and
//!                         whether a record of the bucket is being stored
//!  all keys ────────────▶ the floor: the ballot promised for all keys; raised at the process start
//!                         and at the request of nodes that are being rebuilt
//! ```
//!
//! A coordinator may be refused because of another key in the same bucket; it then retries.
//! Promises are in memory only: none exceeds the clock's durable bound, and a process starts with
//! that bound as its floor.
//!
//! A bucket stores one record at a time. The record holds the bucket from the read of the current
//! record until the new record is durable and visible. Meanwhile the bucket gives no promise.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::placement::topology::{PARTITIONS, partition_of};

#[derive(Debug, Default)]
struct Bucket {
    promise: AtomicU64,
    /// True while a record is being stored.
    held: AtomicBool,
}

/// A replica's promises.
#[derive(Debug)]
pub(crate) struct Promises {
    floor: AtomicU64,
    /// The greatest floor below which no record is being stored any more.
    settled: AtomicU64,
    /// The number of pages that are being stored regardless of promises. While it is not 0, no
    /// promise is given.
    pages: AtomicUsize,
    /// The buckets, allocated on the first conditional write.
    buckets: OnceLock<Box<[Bucket]>>,
}

/// The hold on a bucket in which a record is being stored. The holder must pass it to
/// [`Promises::free`].
#[derive(Debug)]
pub(crate) struct BucketHold(u16);

impl BucketHold {
    /// Returns the partition of the bucket.
    pub(crate) fn partition(&self) -> u16 {
        self.0
    }
}

impl Promises {
    /// Makes the promises of a new process. `floor` is at least every ballot that earlier processes
    /// promised.
    pub(crate) fn new(floor: u64) -> Self {
        let [floor, settled] = [floor, floor].map(AtomicU64::new);
        Self { floor, settled, pages: AtomicUsize::new(0), buckets: OnceLock::new() }
    }

    /// Promises the ballot `floor` for all keys. Returns `false` while a record of a lower ballot
    /// is still being stored; the caller must then call again.
    pub(crate) fn raise(&self, floor: u64) -> bool {
        if self.settled.load(Ordering::SeqCst) >= floor {
            return true;
        }
        self.floor.fetch_max(floor, Ordering::SeqCst);
        // A record first holds its bucket and then reads the floor. So a record that this check
        // misses reads the new floor.
        let stores = |bucket: &Bucket| {
            bucket.held.load(Ordering::SeqCst) && bucket.promise.load(Ordering::SeqCst) < floor
        };
        let settled = !self.buckets.get().is_some_and(|buckets| buckets.iter().any(stores));
        if settled {
            self.settled.fetch_max(floor, Ordering::SeqCst);
        }
        settled
    }

    /// Returns the greatest ballot promised for any key.
    pub(crate) fn greatest(&self) -> u64 {
        let of = |bucket: &Bucket| bucket.promise.load(Ordering::SeqCst);
        let buckets = self.buckets.get().and_then(|buckets| buckets.iter().map(of).max());
        self.floor().max(buckets.unwrap_or(0))
    }

    /// Stops giving promises. Each call needs one [`Promises::resume`].
    pub(crate) fn pause(&self) {
        self.pages.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one [`Promises::pause`].
    pub(crate) fn resume(&self) {
        let before = self.pages.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "each pause ends once");
    }

    /// Promises a ballot for a key. If the ballot is not above the promised one, the bucket is
    /// held, or promises are paused, the error is the promised ballot.
    pub(crate) fn promise(&self, key: &[u8], ballot: u64) -> Result<(), u64> {
        let held = self.take(key, |promised| ballot > promised, ballot)?;
        self.free(held);
        Ok(())
    }

    /// Returns true if this replica has promised a ballot above this one for the key, and so would
    /// refuse to store a record under this ballot.
    pub(crate) fn is_promised_above(&self, key: &[u8], ballot: u64) -> bool {
        let bucket = self.buckets.get().map(|buckets| &buckets[usize::from(partition_of(key))]);
        let promised = bucket.map_or(0, |bucket| bucket.promise.load(Ordering::Relaxed));
        self.floor().max(promised) > ballot
    }

    /// Holds the key's bucket to store a record of this ballot, which is thereby promised. If a
    /// higher ballot is promised, the bucket is held, or promises are paused, the error is the
    /// promised ballot.
    pub(crate) fn hold(&self, key: &[u8], ballot: u64) -> Result<BucketHold, u64> {
        self.take(key, |promised| ballot >= promised, ballot)
    }

    /// Releases a bucket whose record is durable and visible, or will not be stored.
    pub(crate) fn free(&self, BucketHold(place): BucketHold) {
        let was_held = self.buckets()[usize::from(place)].held.swap(false, Ordering::Release);
        assert!(was_held, "a bucket is freed once");
    }

    fn take(
        &self,
        key: &[u8],
        suffices: impl FnOnce(u64) -> bool,
        ballot: u64,
    ) -> Result<BucketHold, u64> {
        let place = partition_of(key);
        let bucket = &self.buckets()[usize::from(place)];
        if bucket.held.swap(true, Ordering::SeqCst) {
            return Err(self.floor().max(bucket.promise.load(Ordering::Relaxed)));
        }
        let promised = self.floor().max(bucket.promise.load(Ordering::Relaxed));
        if !suffices(promised) || self.pages.load(Ordering::SeqCst) > 0 {
            self.free(BucketHold(place));
            return Err(promised);
        }
        assert!(ballot >= promised, "a promise never falls");
        bucket.promise.store(ballot, Ordering::SeqCst);
        Ok(BucketHold(place))
    }

    fn floor(&self) -> u64 {
        self.floor.load(Ordering::SeqCst)
    }

    fn buckets(&self) -> &[Bucket] {
        self.buckets.get_or_init(|| (0..PARTITIONS).map(|_| Bucket::default()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_above_all_before_it() {
        let promises = Promises::new(5);
        assert_eq!(promises.promise(b"k", 5), Err(5));
        assert_eq!(promises.promise(b"k", 7), Ok(()));
        assert_eq!(promises.promise(b"k", 7), Err(7));
        assert_eq!(promises.promise(b"other", 6), Ok(()));
        assert!(promises.raise(9));
        assert_eq!((promises.promise(b"k", 9), promises.promise(b"other", 10)), (Err(9), Ok(())));
    }

    #[test]
    fn nothing_is_promised_while_a_record_is_stored() {
        let promises = Promises::new(0);
        assert_eq!(promises.promise(b"k", 3), Ok(()));
        assert_eq!(promises.hold(b"k", 2).unwrap_err(), 3);
        let held = promises.hold(b"k", 3).unwrap();
        assert_eq!(promises.promise(b"k", 4), Err(3));
        assert_eq!(promises.hold(b"k", 4).unwrap_err(), 3);
        promises.free(held);
        assert_eq!(promises.promise(b"k", 4), Ok(()));
    }

    #[test]
    fn a_floor_raised_meanwhile_is_obeyed() {
        let promises = Promises::new(0);
        let (early, late) = (promises.hold(b"k", 7).unwrap(), promises.hold(b"l", 8).unwrap());
        assert!(!promises.raise(8), "the early one is not stored yet");
        assert_eq!(promises.hold(b"m", 7).unwrap_err(), 8);
        promises.free(early);
        assert!(promises.raise(8), "a later one need not be waited for");
        promises.free(late);
    }

    #[test]
    fn while_a_page_is_stored_nothing_is_promised() {
        let promises = Promises::new(0);
        promises.pause();
        promises.pause();
        assert!(promises.raise(4));
        promises.resume();
        assert_eq!((promises.promise(b"k", 5), promises.hold(b"k", 5).unwrap_err()), (Err(4), 4));
        promises.resume();
        assert_eq!((promises.promise(b"k", 4), promises.promise(b"k", 5)), (Err(4), Ok(())));
    }
}
