//! Partition copies that a membership change moves, by source and destination.

use std::collections::BTreeMap;

use crate::node_id::NodeId;
use crate::placement::topology::{PARTITIONS, Topology};

/// The partition copies that a membership change moves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MovedCopies {
    /// Number of copies per (source, destination). A node that leaves a partition is the source for
    /// a node that joins the partition. If no node leaves it, its first replica is the source.
    pub by_pair: BTreeMap<(NodeId, NodeId), u32>,
}

impl MovedCopies {
    /// Counts the copies to move from `before` to `after`, with the default number of copies.
    /// Visits all partitions, which takes some milliseconds.
    pub fn between(before: &Topology, after: &Topology) -> Self {
        let (mut was, mut is, mut moves) = (Vec::new(), Vec::new(), Self::default());
        for partition in 0..PARTITIONS as u32 {
            before.replicas(partition as u16, before.default_copies(), &mut was);
            after.replicas(partition as u16, after.default_copies(), &mut is);
            let mut leave = was.iter().filter(|node| !is.contains(node));
            for to in is.iter().filter(|node| !was.contains(node)) {
                let from = leave.next().unwrap_or(&was[0]);
                *moves.by_pair.entry((*from, *to)).or_default() += 1;
            }
        }
        moves
    }

    /// Returns the total number of copies.
    pub fn copies(&self) -> u64 {
        self.by_pair.values().copied().map(u64::from).sum()
    }

    /// Returns the number of copies that move to a node.
    pub fn to(&self, node: NodeId) -> u64 {
        let to = self.by_pair.iter().filter(|((_, to), _)| *to == node);
        to.map(|(_, copies)| u64::from(*copies)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::topology::Member;

    fn topology(names: &[&str], replicas: u8) -> Topology {
        let member = |name: &&str| Member { name: (*name).into(), zone: String::new(), weight: 1 };
        Topology::new(names.iter().map(member).collect(), replicas).unwrap()
    }

    #[test]
    fn a_leaving_node_hands_its_copies_to_the_joining_node() {
        let of = |names: &[(u16, &str)]| {
            let member = |(id, name): &(u16, &str)| {
                (NodeId(*id), Member { name: (*name).into(), zone: String::new(), weight: 1 })
            };
            Topology::of(names.iter().map(member).collect(), 1).unwrap()
        };
        let (a, b) = (of(&[(0, "a")]), of(&[(1, "b")]));
        let moves = MovedCopies::between(&a, &b);
        assert_eq!(moves.by_pair, [((NodeId(0), NodeId(1)), 65_536)].into());
        assert_eq!((moves.copies(), moves.to(NodeId(1)), moves.to(NodeId(0))), (65_536, 65_536, 0));
        assert_eq!(MovedCopies::between(&a, &a), MovedCopies::default());
    }

    #[test]
    fn without_a_leaving_node_a_replica_sends_the_copy() {
        let (one, three) = (topology(&["a"], 3), topology(&["a", "b", "c"], 3));
        let moves = MovedCopies::between(&one, &three);
        assert_eq!(moves.copies(), 2 * 65_536);
        assert!(moves.by_pair.keys().all(|(from, to)| from.0 == 0 && to.0 > 0));
        assert_eq!(MovedCopies::between(&three, &one).copies(), 0);
    }
}
