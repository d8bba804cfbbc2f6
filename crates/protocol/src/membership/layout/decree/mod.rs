//! Forced layouts (`Decree`): layouts that an operator makes without the metadata quorum, whose
//! majority is lost for good.
//!
//! ```text
//!   layout 7, quorum lost ─── forced layout (base 7) ──▶ layout 1,000,000 ──▶ 1,000,001 …
//!          │                                                 metadata quorum: one node
//!          └─▶ 8, which the lost nodes may have decided: a fork, refused by all other nodes
//! ```
//!
//! A forced layout replaces a decision of the majority, without knowledge of the layouts that the
//! majority may have decided last. So each layout carries all forced layouts in its history. A node
//! adopts a later layout under two conditions: the node's forced layouts are a prefix of the later
//! layout's, and the node's epoch is at most the base of the first forced layout that the node
//! lacks. Any other node is on a fork. The reads and writes of such a node belong to a different
//! placement (`View::with_forced_layout`), so no vote is counted across the fork.
//! docs/design/membership.md shows why the two conditions suffice.

use super::{Layout, Seat, Stage, VoterId};
use crate::node_id::NodeId;

/// Distance between the epochs of forced layouts: a forced layout's epoch is the next multiple of
/// this number. Every epoch in between belongs to a fork.
const EPOCHS: u64 = 1_000_000;

/// Maximum number of forced layouts of one cluster: their count has one byte.
pub(super) const MAX_DECREES: usize = u8::MAX as usize;

/// A forced layout in the history of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decree {
    /// The epoch of the layout that the forced layout succeeds.
    pub base: u64,
    /// The epoch of the forced layout.
    pub epoch: u64,
    /// A random number that distinguishes this forced layout from another forced layout with the
    /// same base.
    pub number: u64,
}

/// An error in forcing a layout. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecreeError {
    /// The node is leaving, or was joining in a transition that is aborted.
    #[error("this node is not a member of that layout: take the directory of a node that is one")]
    NoMember,
    /// The cluster has the maximum number of forced layouts.
    #[error("the cluster was recovered {MAX_DECREES} times, and can't be once more")]
    TooMany,
}

impl Layout {
    /// Returns the forced layout whose metadata quorum is this node alone, with the new voter id
    /// `voter`. A transition is aborted as long as reads have not switched. After the switch it
    /// continues without the nodes `lost`, whose disks are gone.
    pub fn plan_forced_layout(
        &self,
        node: NodeId,
        voter: VoterId,
        lost: &[NodeId],
    ) -> Result<Self, DecreeError> {
        let epoch = (self.epoch / EPOCHS + 1) * EPOCHS;
        let mut next = self.plan_abort(|_| Some(voter)).unwrap_or_else(|| self.clone());
        if self.stage == Stage::ReadOld {
            next.placement_epoch = epoch;
        }
        for node in next.before.iter_mut().flat_map(|before| &mut before.nodes) {
            node.is_lost |= lost.contains(&node.id);
        }
        if next.member(node).is_none() {
            return Err(DecreeError::NoMember);
        }
        if next.decrees.len() >= MAX_DECREES {
            return Err(DecreeError::TooMany);
        }
        next.decrees.push(Decree { base: self.epoch, epoch, number: voter.0 });
        let council = vec![Seat { node, voter: Some(voter) }];
        Ok(Self { epoch, council, base: self.id(), ..next })
    }

    /// True if one of the two layouts succeeds the other by decisions and forced layouts. Otherwise
    /// the cluster has forked.
    pub fn shares_lineage_with(&self, other: &Self) -> bool {
        let (early, late) = if self.epoch <= other.epoch { (self, other) } else { (other, self) };
        let shared = early.decrees.len();
        late.decrees.get(..shared) == Some(&early.decrees)
            && late.decrees.get(shared).is_none_or(|next| early.epoch <= next.base)
    }

    /// True if the epoch belongs to a fork. Not every fork can be recognized by its epoch.
    pub(crate) fn forks_from(&self, epoch: u64) -> bool {
        self.decrees.iter().any(|decree| decree.base < epoch && epoch < decree.epoch)
    }

    /// True if the forced layouts are consistent with each other and with the epoch.
    pub(super) fn has_consistent_decrees(&self) -> bool {
        let follow = |pair: &[Decree]| pair[0].epoch <= pair[1].base;
        self.decrees.iter().all(|decree| decree.base < decree.epoch)
            && self.decrees.windows(2).all(follow)
            && self.decrees.last().is_none_or(|last| last.epoch <= self.epoch)
    }
}

#[cfg(test)]
mod tests;
