//! Which events are sampled: each unit (a byte, a nanosecond) with the same chance, so that an
//! event of any size counts as much as it weighs.
//!
//! With a mean distance `m` between sampled units, an event of size `s` is hit with probability
//! `1 − e^(−s/m)`, and stands for `s / (1 − e^(−s/m))` units: that is unbiased for every call path.

use std::cell::Cell;

/// One thread's position between two samples. Constant, and nothing to drop: it can be reached at
/// any time, also from the allocator while the thread ends.
pub(crate) struct Distance {
    left: Cell<i64>,
    random: Cell<Option<fastrand::Rng>>,
}

impl Distance {
    pub(crate) const fn new() -> Self {
        Self { left: Cell::new(0), random: Cell::new(None) }
    }

    /// Goes on by `size` units; if that hits, how many units the event stands for.
    #[inline]
    pub(crate) fn pass(&self, size: u64, mean: u64) -> Option<u64> {
        let left = self.left.get().saturating_sub(i64::try_from(size).unwrap_or(i64::MAX));
        self.left.set(left);
        if left > 0 { None } else { self.hit(size, mean) }
    }

    #[cold]
    fn hit(&self, size: u64, mean: u64) -> Option<u64> {
        let begun = self.random.take();
        let fresh = begun.is_none();
        let mut random = begun.unwrap_or_else(|| {
            // Different in each thread.
            let mut random = fastrand::Rng::with_seed(&raw const *self as u64);
            // Neighbouring threads begin far from each other.
            for _ in 0..8 {
                random.u64(..);
            }
            random
        });
        // Uniform in (0, 1].
        let drawn = 1.0 - random.f64();
        self.random.set(Some(random));
        self.left.set((-drawn.ln() * mean as f64) as i64);
        if fresh {
            // The first event did not come by chance.
            return self.pass(size, mean);
        }
        Some(stands_for(size, mean))
    }
}

/// How many units an event of `size` that was hit stands for.
fn stands_for(size: u64, mean: u64) -> u64 {
    let size = size.max(1) as f64;
    (size / -(-size / mean as f64).exp_m1()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_unbiased_for_small_and_large_events() {
        let distance = Distance::new();
        for size in [16, 1000, 100_000, 10_000_000] {
            let events = 400_000_000 / size;
            let sum: u64 = (0..events).filter_map(|_| distance.pass(size, 65_536)).sum();
            let ratio = sum as f64 / (events * size) as f64;
            // 6,000 hits or more: four standard deviations are below 6 %.
            assert!((0.94..1.06).contains(&ratio), "{size}: {ratio}");
        }
    }
}
