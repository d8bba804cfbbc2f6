//! Request latencies in log-linear buckets. Each doubling is divided into four buckets of equal
//! width, so a latency is at most a fifth below its bucket's upper bound. The upper bounds:
//!
//! ```text
//!  ≤ 1.024 µs │ 1.28 │ 1.536 │ 1.792 │ 2.048 │ 2.56 │ 3.072 │ … │ 8.59 s │ more
//!  bucket 0     1      2       3       4       5      6           92       93
//! ```

use crate::counters::Count;

/// Upper bound of the first bucket, in nanoseconds: the least time of an answer from memory.
pub(crate) const FIRST_NANOS: u64 = 1 << FIRST_BITS;

const FIRST_BITS: u32 = 10;

/// Number of buckets of each doubling.
pub(crate) const PER_DOUBLING: usize = 1 << SUB_BITS;

const SUB_BITS: u32 = 2;

/// Number of doublings, up to 8.6 s: longer than any default deadline.
const DOUBLINGS: usize = 23;

/// Number of all buckets, including the first and the overflow bucket.
pub(crate) const BUCKETS: usize = DOUBLINGS * PER_DOUBLING + 2;

/// A latency histogram.
#[derive(Debug)]
pub(crate) struct Latency {
    /// Number of requests in each bucket.
    pub(crate) buckets: [Count; BUCKETS],
    /// Sum of the latencies, in nanoseconds.
    pub(crate) nanos: Count,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Count::default()), nanos: Count::default() }
    }
}

impl Latency {
    /// Counts a request with this latency.
    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        self.buckets[bucket_of(nanos)].add(1);
        self.nanos.add(nanos);
    }
}

/// Returns the first bucket whose upper bound is at least `nanos`.
#[inline]
fn bucket_of(nanos: u64) -> usize {
    let below = nanos.saturating_sub(1);
    let Some(doubling) = below.checked_ilog2().and_then(|bits| bits.checked_sub(FIRST_BITS)) else {
        return 0;
    };
    let quarter = (below >> (doubling + FIRST_BITS - SUB_BITS)) as usize % PER_DOUBLING;
    (doubling as usize * PER_DOUBLING + quarter + 1).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the greatest value of `bucket`.
    fn bound(bucket: usize) -> u64 {
        let (doubling, quarter) = ((bucket - 1) / PER_DOUBLING, (bucket - 1) % PER_DOUBLING);
        let from = FIRST_NANOS << doubling;
        from + from / PER_DOUBLING as u64 * (quarter as u64 + 1)
    }

    #[test]
    fn a_latency_is_counted_in_the_first_bucket_with_a_sufficient_bound() {
        assert_eq!((bucket_of(0), bucket_of(FIRST_NANOS), bucket_of(FIRST_NANOS + 1)), (0, 0, 1));
        for bucket in 1..BUCKETS - 1 {
            assert_eq!(bucket_of(bound(bucket)), bucket);
            assert_eq!(bucket_of(bound(bucket) + 1), bucket + 1);
        }
        assert_eq!(bound(BUCKETS - 2), 1 << 33);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_recorded_latency_is_counted_and_summed() {
        let latency = Latency::default();
        latency.record(20_000);
        latency.record(20_000);
        assert_eq!(latency.buckets[bucket_of(20_000)].get(), 2);
        assert_eq!(latency.nanos.get(), 40_000);
    }
}
