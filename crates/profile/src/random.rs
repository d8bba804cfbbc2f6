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
    state: Cell<u64>,
}

impl Distance {
    pub(crate) const fn new() -> Self {
        Self { left: Cell::new(0), state: Cell::new(0) }
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
        let fresh = self.state.get() == 0;
        if fresh {
            // Different in each thread, and not 0.
            self.state.set((&raw const *self as u64) | 1);
            // Neighbouring threads begin far from each other.
            for _ in 0..8 {
                self.draw();
            }
        }
        let distance = -self.draw().ln() * mean as f64;
        self.left.set(distance as i64);
        if fresh {
            // The first event did not come by chance.
            return self.pass(size, mean);
        }
        Some(stands_for(size, mean))
    }

    /// Uniform in (0, 1].
    fn draw(&self) -> f64 {
        // splitmix64.
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
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
