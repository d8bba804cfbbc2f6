//! Random selection of the events to sample. Each unit (a byte, a nanosecond) has the same chance,
//! so an event counts in proportion to its size.
//!
//! With a mean distance `m` between sampled units, an event of size `s` is sampled with probability
//! `1 − e^(−s/m)`, and then stands for `s / (1 − e^(−s/m))` units, which is unbiased for every call
//! path.

use std::cell::Cell;

/// The distance in units to a thread's next sample. It is initialized by a constant and has no
/// destructor, so a thread can access it at any time, even from the allocator while the thread
/// ends.
pub(crate) struct SampleDistance {
    left: Cell<i64>,
    random: Cell<Option<fastrand::Rng>>,
}

impl SampleDistance {
    pub(crate) const fn new() -> Self {
        Self { left: Cell::new(0), random: Cell::new(None) }
    }

    /// Advances by an event of `size` units. Returns the number of units that the event stands for
    /// if the event is sampled, otherwise `None`.
    #[inline]
    pub(crate) fn pass(&self, size: u64, mean: u64) -> Option<u64> {
        let left = self.left.get().saturating_sub(i64::try_from(size).unwrap_or(i64::MAX));
        self.left.set(left);
        if left > 0 { None } else { self.draw_next(size, mean) }
    }

    #[cold]
    fn draw_next(&self, size: u64, mean: u64) -> Option<u64> {
        let begun = self.random.take();
        let fresh = begun.is_none();
        let mut random = begun.unwrap_or_else(|| {
            // The seed differs between threads.
            let mut random = fastrand::Rng::with_seed(&raw const *self as u64);
            // Separates the sequences of threads with similar seeds.
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
            // A thread's first event was selected by the initial state and not by chance, so it is
            // drawn once more.
            return self.pass(size, mean);
        }
        Some(represented_units(size, mean))
    }
}

/// Returns the number of units that a sampled event of `size` units stands for.
fn represented_units(size: u64, mean: u64) -> u64 {
    let size = size.max(1) as f64;
    (size / -(-size / mean as f64).exp_m1()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_unbiased_for_small_and_large_events() {
        let distance = SampleDistance::new();
        for size in [16, 1000, 100_000, 10_000_000] {
            let events = 400_000_000 / size;
            let sum: u64 = (0..events).filter_map(|_| distance.pass(size, 65_536)).sum();
            let ratio = sum as f64 / (events * size) as f64;
            // At least 6,000 samples: four standard deviations are below 6 %.
            assert!((0.94..1.06).contains(&ratio), "{size}: {ratio}");
        }
    }
}
