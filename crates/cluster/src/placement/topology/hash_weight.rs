//! What a node draws with.

use super::MAX_WEIGHT;
use super::placement::cost;

/// By how much a hash weight may differ from its node's weight: more would be needed by a node that
/// is to hold nearly all, and would not help it.
const MOST_FACTOR: u32 = 16;

/// What a node draws partitions with, in 65,536ths: its weight; or what makes it hold its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashWeight(u32);

impl HashWeight {
    /// The greatest that there is …
    const MOST: u32 = (MAX_WEIGHT * MOST_FACTOR) << 16;

    /// … and the least: with half of it a cost would not fit 64 bits.
    const LEAST: u32 = 1 << 15;

    /// One that was made elsewhere, if there is such a one.
    pub fn new(value: u32) -> Option<Self> {
        (Self::LEAST..=Self::MOST).contains(&value).then_some(Self(value))
    }

    /// The hash weight as a number, in 65,536ths.
    pub fn get(self) -> u32 {
        self.0
    }

    /// That of a node which draws with its weight.
    pub(super) fn of(weight: u32) -> Self {
        Self(weight << 16)
    }

    /// 2^63 / weight.
    pub(super) fn per_weight(self) -> u64 {
        ((1_u128 << 79) / u128::from(self.0)).min(u128::from(u64::MAX)) as u64
    }

    /// So many times as much, within what there is.
    pub(super) fn times(self, factor: f64) -> Self {
        let (least, most) = (f64::from(Self::LEAST), f64::from(Self::MOST));
        Self((f64::from(self.0) * factor).round().clamp(least, most) as u32)
    }

    /// How many times a node's weight it is.
    pub(super) fn factor(self, weight: u32) -> f64 {
        f64::from(self.0) / f64::from(Self::of(weight).0)
    }

    /// What a number that was drawn costs.
    pub(super) fn cost(self, draw: u64) -> u64 {
        cost(draw, self.per_weight())
    }
}
