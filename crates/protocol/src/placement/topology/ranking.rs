//! Order of the nodes for a partition: weighted rendezvous hashing, different zones first.
//!
//! Each node gets a random number per partition, from a hash of node and partition. Its cost is
//! −log₂(number) divided by the node's hash weight, and the cheapest node comes first:
//!
//! ```text
//!   cost(node, partition) = −log₂( xxh3-64(partition, seed = xxh3-64(name)) / 2^64 ) / weight
//!
//!   zone x:  a 0.2   b 0.9            first the cheapest of each zone, by cost:  c a d
//!   zone y:  c 0.1   e 0.3            then the second of each zone:              e b
//!   zone z:  d 0.4
//! ```
//!
//! A node's cost depends on no other node. So a node that joins or leaves moves only the partitions
//! that it gains or loses and, in a zone of several nodes, those in which it changes the rank of
//! other nodes of its zone. The costs are exponentially distributed with the weights as rates, so
//! each node comes first in proportion to its weight.
//!
//! Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
//! IEEE/ACM Transactions on Networking 6(1), 1998. Weights by the logarithm: Schindelhauer and
//! Schomaker, "Weighted distributed hash tables", SPAA 2005.
//!
//! All nodes must compute the same order bit by bit, and the result of `f64::ln` depends on the
//! platform's mathematical library. So the logarithm is computed in integers.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{HashWeight, Member};
use crate::node_id::NodeId;

/// Sort key of a node in a partition's order: rank within the zone, cost, position by name.
type ScoredNode = (u16, u64, u16);

/// The nodes, in the form that the hashing needs.
#[derive(Debug)]
pub(super) struct Placement {
    /// The nodes' hash inputs, sorted by zone.
    draws: Vec<Draw>,
    /// End index of each zone in `draws`.
    zone_ends: Vec<usize>,
    /// The nodes' ids, by position.
    ids: Vec<NodeId>,
}

#[derive(Debug)]
struct Draw {
    seed: u64,
    /// 2^63 / weight.
    per_weight: u64,
    place: u16,
}

impl Placement {
    /// Prepares the nodes. `members` are sorted by name; `ids` and `weights` are in the same order.
    pub(super) fn of(members: &[Member], ids: &[NodeId], weights: &[HashWeight]) -> Self {
        let mut by_zone: Vec<(usize, &Member)> = members.iter().enumerate().collect();
        by_zone.sort_by_key(|(place, member)| (&member.zone, *place));
        let draw = |(place, member): &(usize, &Member)| Draw {
            seed: seed(member),
            per_weight: weights[*place].per_weight(),
            place: *place as u16,
        };
        let alone = |zone: &str| zone.is_empty();
        let ends = (1..=by_zone.len()).filter(|end| {
            let zone = &by_zone[end - 1].1.zone;
            alone(zone) || by_zone.get(*end).is_none_or(|(_, next)| next.zone != *zone)
        });
        let draws = by_zone.iter().map(draw).collect();
        Self { zone_ends: ends.collect(), draws, ids: ids.to_vec() }
    }

    /// Returns a node's hash score for a partition: −log₂ of its number, not divided by the weight.
    pub(super) fn score(member: &Member, partition: u16) -> u64 {
        minus_log2(xxh3_64_with_seed(&u64::from(partition).to_le_bytes(), seed(member)))
    }

    /// Puts the first `count` nodes for the partition into `into`.
    pub(super) fn order(&self, partition: u16, count: usize, into: &mut Vec<NodeId>) {
        let mut all = Best::new(count);
        let mut zone = Best::new(count);
        let partition = u64::from(partition).to_le_bytes();
        let mut first = 0;
        for end in &self.zone_ends {
            zone.places.clear();
            for draw in &self.draws[first..*end] {
                let drawn = minus_log2(xxh3_64_with_seed(&partition, draw.seed));
                zone.offer((0, cost(drawn, draw.per_weight), draw.place));
            }
            for (rank, (_, cost, place)) in zone.places.iter().enumerate() {
                all.offer((rank as u16, *cost, *place));
            }
            first = *end;
        }
        into.clear();
        into.extend(all.places.iter().map(|(_, _, place)| self.ids[usize::from(*place)]));
    }
}

/// The `count` lowest sort keys offered, in order.
struct Best {
    count: usize,
    places: Vec<ScoredNode>,
}

impl Best {
    fn new(count: usize) -> Self {
        Self { count, places: Vec::with_capacity(count + 1) }
    }

    #[inline]
    fn offer(&mut self, place: ScoredNode) {
        if self.places.len() == self.count && self.places.last().is_none_or(|last| *last < place) {
            return;
        }
        let before = self.places.partition_point(|other| *other < place);
        self.places.insert(before, place);
        self.places.truncate(self.count);
    }
}

/// Number of fraction bits of a logarithm; the integer part, up to 64, takes the other seven bits.
const FRACTION_BITS: u32 = 57;

/// Log₂ of the number of pieces into which an octave is divided. Within a piece the logarithm is
/// interpolated linearly; the shares then differ from the weights by less than 1 in 4,000.
const PIECE_BITS: u32 = 10;

/// Table of log₂(1 + n / 1024).
static LOG2: [u64; (1 << PIECE_BITS) + 1] = log2_table();

fn seed(member: &Member) -> u64 {
    xxh3_64(member.name.as_bytes())
}

/// Divides a hash score by the node's weight; saturates.
#[inline]
pub(super) fn cost(drawn: u64, per_weight: u64) -> u64 {
    u64::try_from((u128::from(drawn) * u128::from(per_weight)) >> 63).unwrap_or(u64::MAX)
}

/// Returns −log₂(`hash` / 2^64) with [`FRACTION_BITS`] fraction bits. The lowest bit of `hash`
/// counts as set, so that 0 has a logarithm too.
#[inline]
fn minus_log2(hash: u64) -> u64 {
    let hash = hash | 1;
    let zeros = hash.leading_zeros();
    // The number without its leading one: the offset in its octave, as a fraction of 2^64.
    let within = (hash << zeros) << 1;
    let piece = (within >> (64 - PIECE_BITS)) as usize;
    let rest = within << PIECE_BITS;
    let (low, high) = (LOG2[piece], LOG2[piece + 1]);
    let log = low + ((u128::from(high - low) * u128::from(rest)) >> 64) as u64;
    (u64::from(zeros + 1) << FRACTION_BITS) - log
}

const fn log2_table() -> [u64; (1 << PIECE_BITS) + 1] {
    let mut table = [0; (1 << PIECE_BITS) + 1];
    let mut n = 0;
    while n < 1 << PIECE_BITS {
        table[n] = log2_of((1 << 63) + ((n as u64) << (63 - PIECE_BITS)));
        n += 1;
    }
    table[1 << PIECE_BITS] = 1 << FRACTION_BITS;
    table
}

/// Returns log₂ of a number from 1 to 2 that has 63 fraction bits; the result has
/// [`FRACTION_BITS`]. Squaring the number doubles its logarithm, and the next bit of the result is
/// 1 if the square reaches 2.
const fn log2_of(mut number: u64) -> u64 {
    let mut log = 0;
    let mut bit = 0;
    while bit < FRACTION_BITS {
        let square = (number as u128 * number as u128) >> 63;
        let reached = (square >> 64) as u64;
        log = log << 1 | reached;
        number = (square >> reached) as u64;
        bit += 1;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_accurate() {
        let mut hash = 1_u64;
        for step in 0..100_000_u64 {
            hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(step);
            let shifted = hash >> (step % 60);
            let ours = minus_log2(shifted) as f64 / (1_u64 << FRACTION_BITS) as f64;
            let exact = 64.0 - ((shifted | 1) as f64).log2();
            assert!((ours - exact).abs() < 2e-7, "{shifted}: {ours} for {exact}");
        }
    }

    #[test]
    fn the_ends_of_the_logarithm_table_are_exact() {
        assert_eq!(minus_log2(0), 64 << FRACTION_BITS);
        assert_eq!(minus_log2((1 << 63) - 1) >> (FRACTION_BITS - 20), 1 << 20);
        assert!(minus_log2(u64::MAX) < 1 << (FRACTION_BITS - 50));
        assert_eq!(cost(minus_log2(0), 1 << 63), 64 << FRACTION_BITS);
    }

    /// Pins the table's bits, which must be the same on every platform.
    #[test]
    fn the_bits_of_the_logarithm_table_are_pinned() {
        assert_eq!(LOG2[512], 84_301_980_808_752_399, "log2(1.5)");
        let all: Vec<u8> = LOG2.iter().flat_map(|log| log.to_le_bytes()).collect();
        assert_eq!(xxh3_64(&all), 10_313_200_144_454_587_502);
    }

    #[test]
    fn a_number_that_is_larger_never_costs_more() {
        let mut hash = u64::MAX;
        let mut last = minus_log2(hash);
        while hash > 1 {
            hash -= hash / 4096 + 1;
            let next = minus_log2(hash);
            assert!(next >= last);
            last = next;
        }
    }
}
