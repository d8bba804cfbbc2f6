//! SplitMix64, a deterministic pseudorandom generator (Steele, Lea, Flood: "Fast splittable
//! pseudorandom number generators", 2014). The generator is implemented here, so that no update of
//! a library changes the numbers of a seed.

/// A seeded sequence of pseudorandom numbers, for a [`MemDisk`](super::MemDisk) and for simulations
/// around it.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, uniform over all `u64`s.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// A number in `from..=to`.
    pub(super) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below((to - from) as u64 + 1) as usize
    }

    /// Returns true with a probability of 1/`of`.
    pub(super) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
