//! A layout, as far as one partition goes: who holds it, or from whom to whom it moves.

use std::collections::BTreeSet;

use crate::rules::Rules;

/// Ids of nodes, ascending.
pub(crate) type Nodes = &'static [u8];

/// How far the partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The old and the new set are the same.
    Settled,
    /// Both are written, the old one is read.
    ReadOld,
    /// Both are written, the new one is read.
    ReadNew,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) stage: Stage,
    pub(crate) old: Nodes,
    pub(crate) new: Nodes,
    /// The epoch of the transition's first layout.
    pub(crate) began: u8,
    /// Who is declared lost.
    pub(crate) lost: Option<u8>,
}

/// How many must do their part, unless a majority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Acks {
    pub(crate) write: Option<usize>,
    pub(crate) read: Option<usize>,
}

fn count(nodes: Nodes, of: &BTreeSet<u8>) -> usize {
    nodes.iter().filter(|node| of.contains(node)).count()
}

/// Whether there are enough of a set, which are a majority unless that is said.
pub(crate) fn suffice(of: &BTreeSet<u8>, nodes: Nodes, ack: Option<usize>) -> bool {
    count(nodes, of) >= ack.unwrap_or(nodes.len() / 2 + 1)
}

impl Layout {
    pub(crate) fn settled(nodes: Nodes, began: u8) -> Self {
        Self { stage: Stage::Settled, old: nodes, new: nodes, began, lost: None }
    }

    pub(crate) fn holds(&self, node: u8) -> bool {
        self.old.contains(&node) || self.new.contains(&node)
    }

    /// The nodes of the old and the new set.
    pub(crate) fn all(&self) -> BTreeSet<u8> {
        self.old.iter().chain(self.new).copied().collect()
    }

    /// Whether a node is to be sent the partition.
    pub(crate) fn is_receiver(&self, node: u8) -> bool {
        self.new.contains(&node) && !self.old.contains(&node)
    }

    /// Those of the new set that must take what the old one holds: who receives the partition; if
    /// fewer hold it than before all of them, for those that stay may be a quorum that an old one
    /// misses.
    pub(crate) fn takers(&self, rules: &Rules) -> impl Iterator<Item = u8> {
        let all = self.new.len() < self.old.len() && rules.stayers_take_if_fewer;
        self.new.iter().copied().filter(move |node| all || self.is_receiver(*node))
    }

    /// The set that is read, and whose promises count.
    pub(crate) fn read_set(&self) -> Nodes {
        if self.stage == Stage::ReadNew { self.new } else { self.old }
    }

    /// Whether so many have stored a write.
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

    /// Whether so many hold what a reader tells.
    pub(crate) fn is_held(&self, by: &BTreeSet<u8>, ack: Option<usize>, rules: &Rules) -> bool {
        let of = |nodes: Nodes| suffice(by, nodes, ack);
        match self.stage {
            Stage::ReadOld if !rules.reads_confirm_new => of(self.old),
            Stage::ReadNew if !rules.reads_confirm_old => of(self.new),
            _ => of(self.old) && of(self.new),
        }
    }

    /// Whether so many have promised; `bound`: those too that have not taken all.
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
