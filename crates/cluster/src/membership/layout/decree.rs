//! Decrees: layouts that no council decided, for its majority was lost for good.
//!
//! ```text
//!   layout 7, whose council is lost ─── decree (base 7) ──▶ layout 1,000,000 ──▶ 1,000,001 …
//!          │                                                    council: one node
//!          └─▶ 8, which the lost ones may have decided: a fork, refused by all of the others
//! ```
//!
//! Who makes a decree takes the place of a majority, and can't know what that had decided. So a
//! layout carries all decrees that led to it, and a node goes on with a later layout only if its
//! own decrees are the first of those, and it goes by nothing later than what the next one was made
//! for. Every other node is on a fork. What it writes and reads is of another placement
//! (`View::decreed`), so nothing is counted across it. Why that is enough is in
//! docs/membership-model.md.

use super::{Layout, Seat, Stage, VoterId};
use crate::node_id::NodeId;

/// The layout of a decree has the next epoch that is divisible by this: every epoch in between is
/// one of a fork.
const EPOCHS: u64 = 1_000_000;

/// Decrees of one cluster at most: their count has one byte.
pub(super) const MAX_DECREES: usize = u8::MAX as usize;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decree {
    /// The epoch of the layout that it was made for.
    pub base: u64,
    /// That of the layout that it made.
    pub epoch: u64,
    /// Random: it tells it from another one for the same layout.
    pub number: u64,
}

/// Why there is no decree. Nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoDecree {
    /// The node is about to leave, or has not come to stay.
    #[error("this node is not a member of that layout: take the directory of a node that is one")]
    NoMember,
    /// There were too many.
    #[error("the cluster was recovered {MAX_DECREES} times, and can't be once more")]
    TooMany,
}

impl Layout {
    /// What follows by decree, the council being this node alone, as this voter, which is a new
    /// one. A change is gone back from as long as reads have not switched; after that it goes
    /// forward without `lost`, which are nodes that are gone with their disks.
    pub fn decreed(&self, node: NodeId, voter: VoterId, lost: &[NodeId]) -> Result<Self, NoDecree> {
        let epoch = (self.epoch / EPOCHS + 1) * EPOCHS;
        let mut next = self.aborted(|_| Some(voter)).unwrap_or_else(|| self.clone());
        if self.stage == Stage::ReadOld {
            next.began = epoch;
        }
        for node in next.before.iter_mut().flat_map(|before| &mut before.nodes) {
            node.is_lost |= lost.contains(&node.id);
        }
        if next.member(node).is_none() {
            return Err(NoDecree::NoMember);
        }
        if next.decrees.len() >= MAX_DECREES {
            return Err(NoDecree::TooMany);
        }
        next.decrees.push(Decree { base: self.epoch, epoch, number: voter.0 });
        let council = vec![Seat { node, voter: Some(voter) }];
        Ok(Self { epoch, council, base: self.id(), ..next })
    }

    /// Whether one of two layouts grew out of the other one, by councils and decrees. If not, two
    /// parts of the cluster have gone on without each other.
    pub fn is_of_one_line(&self, other: &Self) -> bool {
        let (early, late) = if self.epoch <= other.epoch { (self, other) } else { (other, self) };
        let shared = early.decrees.len();
        late.decrees.get(..shared) == Some(&early.decrees)
            && late.decrees.get(shared).is_none_or(|next| early.epoch <= next.base)
    }

    /// Whether a node that goes by that epoch is on a fork, as far as the epoch tells.
    pub(crate) fn forks_from(&self, epoch: u64) -> bool {
        self.decrees.iter().any(|decree| decree.base < epoch && epoch < decree.epoch)
    }

    /// Whether its decrees can be those that led to it.
    pub(super) fn has_true_decrees(&self) -> bool {
        let follow = |pair: &[Decree]| pair[0].epoch <= pair[1].base;
        self.decrees.iter().all(|decree| decree.base < decree.epoch)
            && self.decrees.windows(2).all(follow)
            && self.decrees.last().is_none_or(|last| last.epoch <= self.epoch)
    }
}

#[cfg(test)]
mod tests;
