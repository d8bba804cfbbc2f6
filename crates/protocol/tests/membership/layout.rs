//! A layout, reduced to one partition: its replicas, or its old and its new set while it moves.

use std::collections::BTreeSet;

use crate::rules::Rules;

/// Ids of nodes, ascending.
pub(crate) type Nodes = &'static [u8];

/// The stage of the partition's transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The old and the new set are the same.
    Settled,
    /// Both sets are written; the old set is read.
    ReadOld,
    /// Both sets are written; the new set is read.
    ReadNew,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) stage: Stage,
    pub(crate) old: Nodes,
    pub(crate) new: Nodes,
    /// The epoch of the transition's first layout.
    pub(crate) began: u8,
    /// The node that the transition declares lost.
    pub(crate) lost: Option<u8>,
}

/// The numbers of required acknowledgements; `None` = a majority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Acks {
    pub(crate) write: Option<usize>,
    pub(crate) read: Option<usize>,
}

fn count(nodes: Nodes, of: &BTreeSet<u8>) -> usize {
    nodes.iter().filter(|node| of.contains(node)).count()
}

/// True if `of` has enough nodes of a set: `ack`, or a majority if `ack` is `None`.
pub(crate) fn suffice(of: &BTreeSet<u8>, nodes: Nodes, ack: Option<usize>) -> bool {
    count(nodes, of) >= ack.unwrap_or(nodes.len() / 2 + 1)
}

impl Layout {
    pub(crate) fn new_settled(nodes: Nodes, began: u8) -> Self {
        Self { stage: Stage::Settled, old: nodes, new: nodes, began, lost: None }
    }

    pub(crate) fn holds(&self, node: u8) -> bool {
        self.old.contains(&node) || self.new.contains(&node)
    }

    /// Returns the nodes of the old and the new set.
    pub(crate) fn all(&self) -> BTreeSet<u8> {
        self.old.iter().chain(self.new).copied().collect()
    }

    /// True if the partition moves to the node.
    pub(crate) fn is_receiver(&self, node: u8) -> bool {
        self.new.contains(&node) && !self.old.contains(&node)
    }

    /// Returns the nodes of the new set that must pull records from the old set: the receivers or,
    /// if the new set is smaller, all its nodes. Nodes that stay in a smaller set may form a quorum
    /// that does not intersect a quorum of the old set.
    pub(crate) fn takers(&self, rules: &Rules) -> impl Iterator<Item = u8> {
        let all = self.new.len() < self.old.len() && rules.stayers_pull_if_fewer;
        self.new.iter().copied().filter(move |node| all || self.is_receiver(*node))
    }

    /// Returns the set that is read, and whose promises count.
    pub(crate) fn read_set(&self) -> Nodes {
        if self.stage == Stage::ReadNew { self.new } else { self.old }
    }

    /// True if a write that these nodes have stored is acknowledged.
    pub(crate) fn is_stored(&self, by: &BTreeSet<u8>, ack: Option<usize>, rules: &Rules) -> bool {
        let of = |nodes: Nodes| suffice(by, nodes, ack);
        if self.stage != Stage::Settled && !rules.acks_are_counted_in_sets {
            let needed = |nodes: Nodes| ack.unwrap_or(nodes.len() / 2 + 1);
            let sum = count(self.old, by) + count(self.new, by);
            return sum >= needed(self.old) + needed(self.new);
        }
        match self.stage {
            Stage::ReadOld if !rules.writes_need_new => of(self.old),
            Stage::ReadNew if !rules.writes_need_old => of(self.new),
            _ => of(self.old) && of(self.new),
        }
    }

    /// True if a read may return a record that these nodes hold.
    pub(crate) fn is_held(&self, by: &BTreeSet<u8>, ack: Option<usize>, rules: &Rules) -> bool {
        let of = |nodes: Nodes| suffice(by, nodes, ack);
        match self.stage {
            Stage::ReadOld if !rules.reads_confirm_new => of(self.old),
            Stage::ReadNew if !rules.reads_confirm_old => of(self.new),
            _ => of(self.old) && of(self.new),
        }
    }

    /// True if the promises of these nodes suffice; `bound` also has the nodes that have promised
    /// but not pulled all records.
    pub(crate) fn is_promised(
        &self,
        by: &BTreeSet<u8>,
        bound: &BTreeSet<u8>,
        rules: &Rules,
    ) -> bool {
        let of = |nodes: Nodes| suffice(by, nodes, None);
        if !rules.promises_are_of_read_set {
            return of(self.old) || of(self.new);
        }
        let both = [self.old, self.new].iter().all(|nodes| suffice(bound, nodes, None));
        of(self.read_set()) && (both || !rules.promises_are_of_both_sets)
    }
}
