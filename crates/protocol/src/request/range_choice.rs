//! The choice of nodes for a range read: for every partition, the first `ack` of its `from`
//! replicas in the order of preference.
//!
//! The set of chosen nodes follows from the zones, without a test of each partition: a node is not
//! chosen if every partition has `ack` replicas among the preferred nodes before it. The partitions
//! of missing nodes are tested one by one only if more nodes are missing than a quorum can spare.

use crate::message::NodeId;
use crate::placement::topology::Topology;
use crate::request::quorum::Quorum;

/// Returns the nodes of `preference` that may be chosen for some partition. In a large cluster, the
/// result may also have a few nodes that are chosen for no partition. `None` = some partition has
/// fewer than `ack` of its replicas in `preference`.
pub(crate) fn candidates<'a>(
    topology: &Topology,
    quorum: Quorum,
    preference: &'a [NodeId],
) -> Option<&'a [NodeId]> {
    assert!(quorum.ack <= quorum.from, "more answers are wanted than there are replicas");
    let spare = usize::from(quorum.from - quorum.ack);
    let mut is_missing = vec![true; topology.nodes()];
    preference.iter().for_each(|node| is_missing[topology.place(*node)] = false);
    let missing: Vec<NodeId> =
        topology.ids().filter(|node| is_missing[topology.place(*node)]).collect();
    // If only the nodes before some node are asked, three kinds of nodes are not asked: the missing
    // nodes, that node, and all nodes after it.
    let mut behind = topology.overlap(quorum.from);
    missing.iter().for_each(|node| behind.add(topology.place(*node)));
    if behind.most() > spare && topology.have_more_than(spare, &missing, quorum.from) {
        return None;
    }
    let mut count = preference.len();
    for node in preference.iter().rev() {
        behind.add(topology.place(*node));
        if behind.most() > spare {
            break;
        }
        count -= 1;
    }
    Some(&preference[..count])
}

/// Chooses the replicas of a partition to ask.
#[derive(Debug)]
pub(crate) struct Chooser<'a> {
    topology: &'a Topology,
    quorum: Quorum,
    /// The rank of each node in the order of preference, indexed by the node's position in the
    /// topology; [`u16::MAX`] = the node is not asked.
    turns: Vec<u16>,
    /// True if every node is a replica of every key, and all nodes are asked.
    everybody: bool,
    /// True if only one node is asked for each key.
    alone: bool,
    replicas: Vec<NodeId>,
}

impl<'a> Chooser<'a> {
    /// Makes a chooser for a quorum and the candidate nodes, best first.
    pub(crate) fn new(topology: &'a Topology, quorum: Quorum, preference: &[NodeId]) -> Self {
        let mut turns = vec![u16::MAX; topology.nodes()];
        for (node, turn) in preference.iter().zip(0..) {
            if let Some(place) = topology.position_of(*node) {
                turns[place] = turn;
            }
        }
        let everybody = usize::from(quorum.ack) == topology.nodes();
        let alone = quorum.ack == 1 || preference.len() == 1;
        Self { topology, quorum, turns, everybody, alone, replicas: Vec::new() }
    }

    /// True if every node is asked for every key.
    pub(crate) fn is_every_node(&self) -> bool {
        self.everybody
    }

    /// True if only one node is asked for each key.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns the replicas of a partition to ask, at most `ack`.
    pub(crate) fn choose(&mut self, partition: u16) -> &[NodeId] {
        self.topology.replicas(partition, self.quorum.from, &mut self.replicas);
        let turn = |node: &NodeId| self.turns[self.topology.place(*node)];
        self.replicas.retain(|node| turn(node) != u16::MAX);
        self.replicas.sort_unstable_by_key(turn);
        self.replicas.truncate(usize::from(self.quorum.ack));
        &self.replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::topology::{Member, PARTITIONS, work};

    fn topology(nodes: usize, zones: usize) -> Topology {
        let zone = |n: usize| if zones == 0 { String::new() } else { format!("z{}", n % zones) };
        let member = |n| Member { name: format!("n{n:04}"), zone: zone(n), weight: 1 };
        Topology::new((0..nodes).map(member).collect(), 3).unwrap()
    }

    /// Returns all nodes from `own` on, without the `missing` ones.
    fn order(topology: &Topology, own: u16, missing: &[u16]) -> Vec<NodeId> {
        let nodes = topology.nodes() as u16;
        let all = (0..nodes).map(|n| (own + n) % nodes);
        all.filter(|node| !missing.contains(node)).map(NodeId).collect()
    }

    /// Returns the nodes that are chosen for some partition, found by a test of all partitions.
    fn find_chosen_nodes(
        topology: &Topology,
        quorum: Quorum,
        preference: &[NodeId],
    ) -> Option<Vec<NodeId>> {
        let mut chooser = Chooser::new(topology, quorum, preference);
        let mut chosen = vec![false; topology.nodes()];
        for partition in 0..=(PARTITIONS - 1) as u16 {
            let nodes = chooser.choose(partition);
            if nodes.len() < usize::from(quorum.ack) {
                return None;
            }
            nodes.iter().for_each(|node| chosen[usize::from(node.0)] = true);
        }
        Some(preference.iter().copied().filter(|node| chosen[usize::from(node.0)]).collect())
    }

    #[test]
    fn those_are_asked_that_are_chosen_for_some_partition() {
        for (nodes, zones) in [(3, 0), (5, 0), (7, 0), (6, 3), (7, 3), (8, 2), (5, 1)] {
            let topology = topology(nodes, zones);
            for (ack, from) in [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (1, 4), (4, 4), (2, 5)] {
                let quorum = Quorum { ack, from };
                if usize::from(from) > nodes {
                    continue;
                }
                for missing in [&[][..], &[1], &[0, 3], &[2, 1], &[4, 3, 2]] {
                    let order = order(&topology, 1, missing);
                    let asked = candidates(&topology, quorum, &order).map(<[NodeId]>::to_vec);
                    let chosen = find_chosen_nodes(&topology, quorum, &order);
                    let what = format!("{quorum:?}, {nodes} in {zones} zones without {missing:?}");
                    assert_eq!(asked, chosen, "{what}");
                }
            }
        }
    }

    #[test]
    fn a_range_starts_without_checking_every_partition() {
        for (nodes, zones) in [(5, 0), (20, 0), (21, 3), (100, 0)] {
            let topology = topology(nodes, zones);
            for (ack, from) in [(1, 2), (2, 3), (3, 5), (6, 10)] {
                let quorum = Quorum { ack, from };
                if usize::from(from) > nodes {
                    continue;
                }
                work::take();
                let failed: Vec<u16> = (1..=u16::from(from - ack)).collect();
                assert!(candidates(&topology, quorum, &order(&topology, 0, &[])).is_some());
                assert!(candidates(&topology, quorum, &order(&topology, 0, &failed)).is_some());
                assert_eq!(work::take(), 0, "{nodes} nodes in {zones} zones, {quorum:?}");
            }
        }
        // The loss of a whole zone costs a quorum one replica, like the loss of a single node.
        let topology = topology(21, 3);
        let zone: Vec<u16> = (0..21).filter(|node| node % 3 == 1).collect();
        assert!(
            candidates(&topology, Quorum { ack: 2, from: 3 }, &order(&topology, 0, &zone))
                .is_some()
        );
        assert_eq!(work::take(), 0);
    }

    /// If more nodes are missing than a quorum can spare, some partition may lack too many
    /// replicas.
    #[test]
    fn with_many_missing_nodes_only_their_partitions_are_checked() {
        for nodes in [5, 20, 100, 400] {
            let (topology, quorum) = (topology(nodes, 0), Quorum { ack: 2, from: 3 });
            let order = order(&topology, 0, &[2, 3]);
            work::take();
            let asked = candidates(&topology, quorum, &order).is_some();
            let looks = work::take();
            assert!(looks <= PARTITIONS / 64, "{looks} looks with {nodes} nodes");
            assert_eq!(asked, find_chosen_nodes(&topology, quorum, &order).is_some());
        }
    }
}
