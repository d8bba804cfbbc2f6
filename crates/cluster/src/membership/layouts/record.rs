//! A stopped node's record of layouts, for whoever makes a decree on its directory.

use super::taking::Taking;
use super::{Arc, Council, Layout, Layouts, NodeId, Vote, Voter, read};
use crate::membership::layout::{NoDecree, VoterId};
use crate::replica::unreadable::Unreadable;

/// See the module.
#[derive(Debug)]
pub struct LayoutsRecord {
    voter: Voter,
    vote: Vote,
    known: Layout,
    taking: Taking,
}

impl LayoutsRecord {
    /// Its bytes; or what is wrong with them.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, Unreadable> {
        let (voter, vote, known, taking) = read(&mut bytes)?;
        Ok(Self { voter, vote, known, taking })
    }

    /// The node that it is of.
    pub fn node(&self) -> NodeId {
        self.voter.node
    }

    /// The last layout that it knows to be decided.
    pub fn known(&self) -> &Layout {
        &self.known
    }

    /// The epoch of a layout that the node accepted and does not know to be decided.
    pub fn accepted(&self) -> Option<u64> {
        self.vote.accepted.as_ref().map(|(_, layout)| layout.epoch)
    }

    /// Whether the node has a vote about what comes next.
    pub fn has_vote(&self) -> bool {
        self.known.council.iter().any(|seat| self.voter.has(seat))
    }

    /// The layout of a decree by which this node alone decides what comes next, as this voter;
    /// see [`Layout::decreed`].
    pub fn decreed(&self, voter: VoterId, lost: &[NodeId]) -> Result<Layout, NoDecree> {
        self.known.decreed(self.voter.node, voter, lost)
    }

    /// The record of the node once it goes by that layout, as this voter.
    pub fn going_by(&self, layout: Layout, voter: VoterId) -> Vec<u8> {
        let voter = Voter { id: Some(voter), is_first: false, ..self.voter };
        let council = Council::new(voter, Arc::new(layout), Vote::default());
        Layouts::of(council, self.taking.clone()).encode().0
    }
}
