//! Random numbers, reproducible from a seed.

/// The generator of the simulated disks, with further distributions.
#[derive(Debug, Clone)]
pub(crate) struct Random(lsm::disk::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(lsm::disk::Random::new(seed))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// Creates an independent generator. Draws from the new generator do not affect this one.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.number())
    }

    /// Draws from `0..bound`; `bound` is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Draws from `least..=most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Draws from `least..=most`, each factor of two equally likely: mostly small, seldom large.
    pub(crate) fn spread(&mut self, least: u64, most: u64) -> u64 {
        let doublings = u64::from((most / least.max(1)).max(1).ilog2());
        let top = (least.max(1) << self.between(0, doublings + 1)).min(most);
        self.between(least, top.max(least))
    }

    /// Returns true with a probability of `permille` in a thousand.
    pub(crate) fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_within_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..10_000).map(|_| random.spread(3, 1000)).collect();
        assert!(drawn.iter().all(|n| (3..=1000).contains(n)));
        assert!(drawn.contains(&3) && drawn.iter().any(|n| *n > 900));
        assert!(drawn.iter().filter(|n| **n < 100).count() > 5_000, "mostly small");
        assert!((0..1000).map(|_| random.between(1, 2)).any(|n| n == 2));
    }
}
