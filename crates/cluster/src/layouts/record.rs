//! A stopped node's record of layouts, for whoever makes a decree on its directory.

use super::taking::Taking;
use super::{Arc, Council, Layout, Layouts, NodeId, Vote, Voter, read};
use crate::layout::{NoDecree, Seat};
use crate::unreadable::Unreadable;

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

    /// The layout of a decree by which this node alone decides what comes next, as the voter of
    /// this number; see [`Layout::decreed`].
    pub fn decreed(&self, number: u64, lost: &[NodeId]) -> Result<Layout, NoDecree> {
        self.known.decreed(Seat { node: self.voter.node, voter: number }, lost)
    }

    /// The record of the node once it goes by that layout, as its voter.
    pub fn going_by(&self, layout: Layout, number: u64) -> Vec<u8> {
        let voter = Voter { id: number, is_first: false, ..self.voter };
        let council = Council::new(voter, Arc::new(layout), Vote::default());
        Layouts::of(council, self.taking.clone()).encode().0
    }
}
