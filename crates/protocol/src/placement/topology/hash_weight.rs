//! A node's weight in rendezvous hashing.

use super::MAX_WEIGHT;
use super::ranking::cost;

/// Ratio of the maximum hash weight to the maximum weight. Only a node that should hold nearly all
/// partitions would need a higher hash weight, and would hardly gain partitions by it.
const MOST_FACTOR: u32 = 16;

/// A node's weight in rendezvous hashing, in 65,536ths: its configured weight, or a value tuned so
/// that the node holds its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashWeight(u32);

impl HashWeight {
    /// The maximum hash weight of a node.
    const MOST: u32 = (MAX_WEIGHT * MOST_FACTOR) << 16;

    /// The minimum hash weight of a node: with half of it, a cost would exceed 64 bits.
    const LEAST: u32 = 1 << 15;

    /// Converts a number received from elsewhere; `None` if it is out of range.
    pub fn new(value: u32) -> Option<Self> {
        (Self::LEAST..=Self::MOST).contains(&value).then_some(Self(value))
    }

    /// Returns the hash weight in 65,536ths.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Returns the hash weight equal to a configured weight.
    pub(super) fn of(weight: u32) -> Self {
        Self(weight << 16)
    }

    /// Returns 2^63 / weight.
    pub(super) fn per_weight(self) -> u64 {
        ((1_u128 << 79) / u128::from(self.0)).min(u128::from(u64::MAX)) as u64
    }

    /// Returns the hash weight multiplied by `factor`, clamped to the valid range.
    pub(super) fn times(self, factor: f64) -> Self {
        let (least, most) = (f64::from(Self::LEAST), f64::from(Self::MOST));
        Self((f64::from(self.0) * factor).round().clamp(least, most) as u32)
    }

    /// Returns the ratio of the hash weight to the configured weight.
    pub(super) fn factor(self, weight: u32) -> f64 {
        f64::from(self.0) / f64::from(Self::of(weight).0)
    }

    /// Returns a node's cost in the ranking: its hash score `draw` divided by this weight.
    pub(super) fn cost(self, draw: u64) -> u64 {
        cost(draw, self.per_weight())
    }
}
