//! Decodes and changes the layout record of a stopped node, for a tool that forces a layout
//! (`Decree`) on the node's directory.

use super::pull_state::PullState;
use super::{Arc, Layout, LayoutVoter, Layouts, NodeId, Vote, Voter, read};
use crate::membership::layout::{DecreeError, VoterId};
use crate::replica::unreadable::Unreadable;

/// A decoded layout record of a stopped node.
#[derive(Debug)]
pub struct LayoutsRecord {
    voter: Voter,
    vote: Vote,
    known: Layout,
    taking: PullState,
}

impl LayoutsRecord {
    /// Decodes the bytes of a record. Errors: the record is damaged or of a later version.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, Unreadable> {
        let (voter, vote, known, taking) = read(&mut bytes)?;
        Ok(Self { voter, vote, known, taking })
    }

    /// Returns the node that wrote the record.
    pub fn node(&self) -> NodeId {
        self.voter.node
    }

    /// Returns the latest layout that the node knows to be decided.
    pub fn known_layout(&self) -> &Layout {
        &self.known
    }

    /// Returns the epoch of the layout that the node accepted without knowing a decision; `None` if
    /// there is no such layout.
    pub fn accepted_epoch(&self) -> Option<u64> {
        self.vote.accepted.as_ref().map(|(_, layout)| layout.epoch)
    }

    /// True if the node has a vote on the next layout.
    pub fn has_vote(&self) -> bool {
        self.known.council.iter().any(|seat| self.voter.has(seat))
    }

    /// Returns the forced layout that makes this node, as `voter`, the only member of the metadata
    /// quorum; see [`Layout::plan_forced_layout`].
    pub fn plan_forced_layout(
        &self,
        voter: VoterId,
        lost: &[NodeId],
    ) -> Result<Layout, DecreeError> {
        self.known.plan_forced_layout(self.voter.node, voter, lost)
    }

    /// Returns the node's record after it has adopted `layout` as `voter`.
    pub fn with_adopted_layout(&self, layout: Layout, voter: VoterId) -> Vec<u8> {
        let voter = Voter { id: Some(voter), is_first: false, ..self.voter };
        let council = LayoutVoter::new(voter, Arc::new(layout), Vote::default());
        Layouts::of(council, self.taking.clone()).encode().0
    }
}
