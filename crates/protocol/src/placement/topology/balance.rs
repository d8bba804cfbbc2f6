//! Balancing: the share of partitions that each node should hold, and the hash weights that achieve
//! it.
//!
//! Hashing alone distributes unevenly: with 1,000 nodes, the fullest node holds a fifth more than
//! its share. And of three nodes, a node of weight 2 holds less than twice as much as another node,
//! because no node holds two copies of a partition. So nodes that deviate from their shares get
//! other hash weights, in two steps:
//!
//! 1. The shares divide `replicas` × partitions among the nodes by weight. A node's share is at
//!    most one copy of each partition. A zone's share stays between the fewest and the most copies
//!    that the order of nodes (`ranking.rs`) can put in the zone.
//! 2. Tuning multiplies a node's hash weight by share / held, for each node that is new or deviates
//!    by more than `SLACK`. Tuning repeats, because each change affects the other nodes too.
//!
//! A node that holds its share keeps its hash weight, and so most of its data: the placement stays
//! a function of a few bytes per node, and few partitions move needlessly.

use std::collections::HashMap;

use super::overlap::Zones;
use super::ranking::Placement;
use super::{HashWeight, Member, PARTITIONS, Topology, TopologyError, check_members};
use crate::node_id::NodeId;

/// Maximum relative deviation of a node from its share at which its hash weight stays: the
/// correction of a smaller deviation would move more than it gains.
const SLACK: f64 = 0.05;

/// Maximum relative deviation of a new node from its share: one or two partitions in a cluster of a
/// thousand nodes. A new node is tuned more tightly than by `SLACK`, because the tuning of a new
/// node moves no partition twice.
const SLACK_OF_NEW: f64 = 0.01;

/// Maximum number of tuning rounds; about ten rounds reach the best possible balance.
const ROUNDS: usize = 24;

/// Number of nodes per partition that tuning considers beyond the partition's replicas: other hash
/// weights may make these nodes replicas.
const SPARE: usize = 16;

/// Partitions that a node holds, and its share, in copies of partitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeFill {
    /// The node that holds the partitions.
    pub node: NodeId,
    /// Number of partitions whose first `replicas` nodes include the node.
    pub held: usize,
    /// The node's share by its weight, as far as zones allow.
    pub share: f64,
}

impl NodeFill {
    /// Returns `held` / `share`; 1 = the node holds its share.
    pub fn ratio(&self) -> f64 {
        self.held as f64 / self.share
    }
}

/// Returns the nodes, sorted by name, with hash weights by which each node holds its share.
/// `before` are the nodes of the previous layout: a partition that need not move stays. A node must
/// have the same id in `before` and `nodes`. Errors: the members are not valid.
pub(crate) fn balance_weights<'a>(
    before: impl Iterator<Item = (NodeId, &'a Member, HashWeight)> + Clone,
    mut nodes: Vec<(NodeId, Member)>,
    replicas: u8,
) -> Result<Vec<(NodeId, Member, HashWeight)>, TopologyError> {
    nodes.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let (ids, members): (Vec<NodeId>, Vec<Member>) = nodes.into_iter().unzip();
    check_members(&members, replicas)?;
    let mean = mean_factor(before.clone());
    let before: HashMap<NodeId, (&Member, HashWeight)> =
        before.map(|(id, member, weight)| (id, (member, weight))).collect();
    let was = |(id, member): (&NodeId, &Member)| {
        let (was, weight) = before.get(id)?;
        (*was == member).then_some(*weight)
    };
    let kept: Vec<Option<HashWeight>> = ids.iter().zip(&members).map(was).collect();
    let weight = |(kept, member): (&Option<HashWeight>, &Member)| {
        kept.unwrap_or_else(|| HashWeight::of(member.weight).times(mean))
    };
    let mut weights: Vec<HashWeight> = kept.iter().zip(&members).map(weight).collect();
    let copies = usize::from(replicas).min(members.len());
    let shares = target_copies(&members, copies);
    let candidates = Candidates::of(&members, &weights, copies);
    for _ in 0..ROUNDS {
        let held = candidates.count_held(&weights);
        if !tune(&mut weights, &held, &shares, &kept) {
            break;
        }
    }
    let nodes = ids.into_iter().zip(members).zip(weights);
    Ok(nodes.map(|((id, member), weight)| (id, member, weight)).collect())
}

impl Topology {
    /// Creates the topology of the nodes, with hash weights balanced from those of `before`.
    pub fn rebalance_from(
        before: &Self,
        nodes: Vec<(NodeId, Member)>,
        replicas: u8,
    ) -> Result<Self, TopologyError> {
        let was = before.ids.iter().zip(before.members.iter()).zip(before.hash_weights.iter());
        let was = was.map(|((id, member), weight)| (*id, member, *weight));
        Self::with_hash_weights(balance_weights(was, nodes, replicas)?, replicas)
    }

    /// Returns the number of partitions held by each node, and the node's share, sorted by name.
    pub fn fill(&self) -> Vec<NodeFill> {
        let mut held = vec![0; self.nodes()];
        let mut order = Vec::new();
        for partition in 0..=u16::MAX {
            self.replicas(partition, self.default_copies(), &mut order);
            order.iter().for_each(|node| held[self.place(*node)] += 1);
        }
        let fill = |(place, share)| NodeFill { node: self.ids[place], held: held[place], share };
        let shares = target_copies(&self.members, usize::from(self.default_copies()));
        shares.into_iter().enumerate().map(fill).collect()
    }
}

/// Returns the number of partition copies that each node should hold, by position.
fn target_copies(members: &[Member], copies: usize) -> Vec<f64> {
    let zones = Zones::of(members);
    let (full, rest) = zones.of_first(copies);
    let partitions = PARTITIONS as f64;
    let count = zones.of.iter().max().map_or(0, |last| usize::from(*last) + 1);
    let mut nodes: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (place, zone) in zones.of.iter().enumerate() {
        nodes[usize::from(*zone)].push(place);
    }
    let weight = |place: &usize| f64::from(members[*place].weight);
    let of_zone = |nodes: &Vec<usize>| Bounds {
        weight: nodes.iter().map(weight).sum(),
        least: nodes.len().min(full) as f64 * partitions,
        most: nodes.len().min(full + usize::from(rest > 0)) as f64 * partitions,
    };
    let bounds: Vec<Bounds> = nodes.iter().map(of_zone).collect();
    let of_zones = divide(copies as f64 * partitions, &bounds);
    let mut shares = vec![0.0; members.len()];
    for (nodes, of_zone) in nodes.iter().zip(of_zones) {
        let of_node = |place| Bounds { weight: weight(place), least: 0.0, most: partitions };
        let bounds: Vec<Bounds> = nodes.iter().map(of_node).collect();
        for (place, share) in nodes.iter().zip(divide(of_zone, &bounds)) {
            shares[*place] = share;
        }
    }
    shares
}

/// Returns the geometric mean of the ratios of hash weight to weight.
fn mean_factor<'a>(nodes: impl Iterator<Item = (NodeId, &'a Member, HashWeight)>) -> f64 {
    let log = |(_, member, hash): (_, &Member, HashWeight)| hash.factor(member.weight).ln();
    let (sum, count) =
        nodes.map(log).fold((0.0, 0.0), |(sum, count), log| (sum + log, count + 1.0));
    (sum / count).exp()
}

/// Tunes the hash weights of the nodes that deviate too much from their shares. Returns true if a
/// hash weight changed.
fn tune(
    weights: &mut [HashWeight],
    held: &[usize],
    shares: &[f64],
    kept: &[Option<HashWeight>],
) -> bool {
    let mut tuned = false;
    for (place, weight) in weights.iter_mut().enumerate() {
        let slack = if kept[place].is_some() { SLACK } else { SLACK_OF_NEW };
        let off = held[place] as f64 / shares[place];
        // To hold a copy of every partition, a node would need an infinite weight.
        let is_whole = shares[place] > (1.0 - SLACK) * PARTITIONS as f64;
        if (off - 1.0).abs() <= slack || is_whole && off > 1.0 - SLACK {
            continue;
        }
        let before = *weight;
        *weight = weight.times(1.0 / off.max(1.0 / PARTITIONS as f64));
        tuned |= *weight != before;
    }
    tuned
}

/// A participant's weight in a division, and the bounds of its part.
struct Bounds {
    weight: f64,
    least: f64,
    most: f64,
}

/// Divides a sum in proportion to weights, within bounds. The parts add up to less than the sum if
/// the bounds allow no more.
fn divide(sum: f64, parts: &[Bounds]) -> Vec<f64> {
    /// Number of bisection steps: about as many as an `f64` has bits of fraction and of range
    /// together.
    const HALVINGS: usize = 100;
    let part =
        |level: f64, bounds: &Bounds| (level * bounds.weight).clamp(bounds.least, bounds.most);
    let (mut low, mut high) = (0.0, sum.max(1.0));
    for _ in 0..HALVINGS {
        let level = (low + high) / 2.0;
        let all: f64 = parts.iter().map(|bounds| part(level, bounds)).sum();
        if all < sum { low = level } else { high = level }
    }
    parts.iter().map(|bounds| part(high, bounds)).collect()
}

/// The current and possible replicas of each partition.
struct Candidates {
    copies: usize,
    /// Number of candidates per partition.
    stride: usize,
    /// Positions of the candidates of partition 0, then of 1, …
    places: Vec<u16>,
    /// Hash scores of the candidates.
    draws: Vec<u64>,
    /// The zone of each node, by position.
    zones: Vec<u16>,
}

impl Candidates {
    fn of(members: &[Member], weights: &[HashWeight], copies: usize) -> Self {
        let stride = members.len().min(copies + SPARE);
        // Positions serve as ids here, so that the placement's order lists positions.
        let ids: Vec<NodeId> = (0..=u16::MAX).map(NodeId).take(members.len()).collect();
        let placement = Placement::of(members, &ids, weights);
        let (mut places, mut draws, mut order) = (Vec::new(), Vec::new(), Vec::new());
        for partition in 0..=u16::MAX {
            placement.order(partition, stride, &mut order);
            for NodeId(place) in &order {
                places.push(*place);
                draws.push(Placement::score(&members[usize::from(*place)], partition));
            }
        }
        Self { copies, stride, places, draws, zones: Zones::of(members).of }
    }

    /// Returns the number of partitions that each node would hold with these hash weights.
    fn count_held(&self, weights: &[HashWeight]) -> Vec<usize> {
        let mut held = vec![0; weights.len()];
        let mut order: Vec<(u16, u64, u16)> = Vec::with_capacity(self.stride);
        let of_partitions = self.places.chunks(self.stride).zip(self.draws.chunks(self.stride));
        for (places, draws) in of_partitions {
            order.clear();
            let one = |(place, draw): (&u16, &u64)| {
                let at = usize::from(*place);
                (self.zones[at], weights[at].cost(*draw), *place)
            };
            order.extend(places.iter().zip(draws).map(one));
            // Sorts by zone and cost, then selects by rank within the zone and cost.
            order.sort_unstable();
            let (mut zone, mut rank) = (u16::MAX, 0);
            for (of, ..) in &mut order {
                rank = if *of == zone { rank + 1 } else { 0 };
                zone = std::mem::replace(of, rank);
            }
            if self.copies < order.len() {
                order.select_nth_unstable(self.copies);
            }
            for (.., place) in &order[..self.copies] {
                held[usize::from(*place)] += 1;
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(zones: &[&str], weights: &[u32]) -> Vec<(NodeId, Member)> {
        let node = |(n, (zone, weight)): (usize, (&&str, &u32))| {
            let member =
                Member { name: format!("n{n:03}"), zone: (*zone).to_owned(), weight: *weight };
            (NodeId(n as u16), member)
        };
        zones.iter().zip(weights).enumerate().map(node).collect()
    }

    /// Returns the highest ratio of held partitions to the share.
    fn fullest(topology: &Topology) -> f64 {
        topology.fill().iter().map(NodeFill::ratio).fold(0.0, f64::max)
    }

    /// Returns the number of partition copies that move, and the minimum that would have to move:
    /// the copies that nodes lack for their shares.
    fn count_moved_copies(before: &Topology, after: &Topology) -> (usize, f64) {
        let (mut was, mut is, mut moved) = (Vec::new(), Vec::new(), 0);
        let mut held = HashMap::<NodeId, usize>::new();
        for partition in 0..=u16::MAX {
            before.replicas(partition, before.default_copies(), &mut was);
            after.replicas(partition, after.default_copies(), &mut is);
            was.iter().for_each(|node| *held.entry(*node).or_default() += 1);
            moved += is.iter().filter(|node| !was.contains(node)).count();
        }
        let lacks = |fill: &NodeFill| fill.share - *held.get(&fill.node).unwrap_or(&0) as f64;
        let least = after.fill().iter().map(lacks).filter(|lacks| *lacks > 0.0).sum();
        (moved, least)
    }

    #[test]
    fn shares_add_up_and_follow_weights_as_far_as_zones_allow() {
        let shares = |zones: &[&str], weights: &[u32], replicas| {
            let fill = Topology::of(nodes(zones, weights), replicas).unwrap().fill();
            let all = PARTITIONS as f64;
            fill.iter().map(|fill| (fill.share / all * 1e3).round() / 1e3).collect::<Vec<f64>>()
        };
        assert_eq!(shares(&["", "", "", ""], &[1, 1, 1, 1], 3), [0.75; 4]);
        assert_eq!(shares(&["", "", ""], &[1, 2, 3], 1), [0.167, 0.333, 0.5]);
        // No node holds a partition twice: the excess goes to the other nodes.
        assert_eq!(shares(&["", "", "", ""], &[1, 1, 1, 9], 2), [0.333, 0.333, 0.333, 1.0]);
        // Each of three zones has one of three copies, however large the zone is.
        assert_eq!(shares(&["x", "x", "y", "z"], &[1, 3, 5, 1], 3), [0.25, 0.75, 1.0, 1.0]);
        // Two zones, three copies: one or two in each.
        assert_eq!(shares(&["x", "x", "y", "y"], &[1; 4], 3), [0.75; 4]);
        assert_eq!(shares(&["x", "x", "x", "y"], &[1; 4], 3), [0.667, 0.667, 0.667, 1.0]);
    }

    #[test]
    fn the_fullest_node_holds_no_more_than_a_tenth_above_its_share() {
        let cases: [(&[&str], &[u32], u8); 6] = [
            (&["", "", "", ""], &[1, 1, 2, 4], 2),
            (&["", "", "", "", ""], &[1, 2, 3, 4, 5], 3),
            (&["x", "x", "x", "y", "y", "z", "z", "z"], &[1, 1, 3, 2, 1, 1, 1, 1], 3),
            (&["x", "x", "x", "y", "y"], &[1, 2, 3, 1, 1], 3),
            (&["", "x", "x", "y", "y", ""], &[4, 1, 2, 3, 1, 1], 4),
            (&["", "", "", ""], &[1, 1, 1, 1000], 1),
        ];
        for (zones, weights, replicas) in cases {
            let nodes = nodes(zones, weights);
            let before = Topology::of(nodes.clone(), replicas).unwrap();
            let after = Topology::rebalance_from(&before, nodes, replicas).unwrap();
            let ratio = fullest(&after);
            assert!(ratio <= 1.1, "{weights:?}: {ratio}, {:?}", after.fill());
        }
    }

    #[test]
    fn a_new_node_gets_its_share_and_moves_little_else() {
        for (nodes_before, new) in [(1, 3), (3, 1), (3, 2), (20, 2)] {
            let all = nodes(&vec![""; nodes_before + new], &vec![1; nodes_before + new]);
            let before = Topology::of(all[..nodes_before].to_vec(), 3).unwrap();
            let after = Topology::rebalance_from(&before, all.clone(), 3).unwrap();
            let (moved, least) = count_moved_copies(&before, &after);
            assert!(moved as f64 <= 1.1 * least, "{nodes_before}+{new}: {moved} of {least}");
            assert!(fullest(&after) <= 1.1);
            let back = Topology::rebalance_from(&after, all[..nodes_before].to_vec(), 3).unwrap();
            assert!(fullest(&back) <= 1.1);
            let (moved, least) = self::count_moved_copies(&after, &back);
            assert!(moved as f64 <= 1.1 * least, "back to {nodes_before}: {moved} of {least}");
        }
    }

    #[test]
    fn hash_weights_are_described_and_differences_told() {
        let nodes = nodes(&["", "x", "", ""], &[1, 1, 2, 4]);
        let before = Topology::of(nodes.clone(), 2).unwrap();
        let after = Topology::rebalance_from(&before, nodes, 2).unwrap();
        assert!(!before.describe().contains("hash") && after.describe().contains(" hash "));
        assert_ne!(before.digest(), after.digest());
        let (one, other) = (before.describe(), after.describe());
        let told = super::super::difference(&one, &other, "the peer's").unwrap();
        assert!(told.contains("hash weight"), "{told}");
        assert_eq!(super::super::difference(&other, &other, "the peer's"), None);
    }
}
