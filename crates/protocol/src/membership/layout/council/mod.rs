//! The decision of the next layout: one instance of Paxos among the metadata quorum (`Council`) of
//! the current layout.
//!
//! ```text
//!   proposal                              quorum members of the base, layout e
//!   ── prepare (base, ballot) ──────────▶ learn the base; promise, durably        ┐ a majority
//!   ◀─ promise (layout accepted before) ─                                         ┘
//!   ── accept (ballot, layout e + 1) ───▶ store it, durably                       ┐ a majority:
//!   ◀─ accepted ────────────────────────                                          ┘ decided
//!   ── decided (layout e + 1) ──────────▶ the *new* quorum learns it, durably     ┐ a majority:
//!   ◀─ learned ─────────────────────────                                          ┘ done
//! ```
//!
//! If any promise reports an accepted layout, the proposer drops its own layout and proposes the
//! reported layout with the highest ballot. Two proposals may have the same ballot, but only one of
//! them can get a majority, because a quorum member promises each ballot once. A quorum member
//! votes only on the successor of the layout that it knows, and does not learn layouts decided on a
//! fork (`decree/mod.rs`). docs/design/membership.md lists each rule and the failure that it
//! prevents; `crates/protocol/tests/membership` is the model of these rules.
//!
//! Lamport, "The Part-Time Parliament", ACM TOCS 16(2), 1998; a chain of single decisions:
//! "Vertical Paxos and primary-backup replication", PODC 2009, section 3.

use std::sync::Arc;

use super::{Layout, Seat};
use crate::node_id::NodeId;

/// A ballot number, counted from 1; 0 = none.
pub type Ballot = u64;

/// Vote of a quorum member on the successor of the layout that it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vote {
    /// The highest ballot promised.
    pub promise: Ballot,
    /// The layout accepted last, and its ballot.
    pub accepted: Option<(Ballot, Arc<Layout>)>,
}

/// A request to a quorum member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteRequest {
    /// Asks for the latest decided layout; any node answers.
    Ask,
    /// Asks to promise a ballot for the successor of `base`.
    Prepare {
        /// The layout to be succeeded.
        base: Arc<Layout>,
        /// The ballot to promise.
        ballot: Ballot,
    },
    /// Asks to accept a successor.
    Accept {
        /// The ballot under which the successor is proposed.
        ballot: Ballot,
        /// The successor to accept.
        layout: Arc<Layout>,
    },
    /// Announces that a layout is decided; any node learns it.
    Decided(Arc<Layout>),
}

/// The reply to a vote request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteReply {
    /// The requested ballot is promised; carries the layout accepted before, and its ballot.
    Promise(Option<(Ballot, Arc<Layout>)>),
    /// The layout is accepted and stored.
    Accepted,
    /// The node knows that this layout, or a later one, is decided. `Accepted` does not imply a
    /// decision.
    Learned,
    /// A higher ballot or, for *prepare*, the same ballot was promised before; carries the promised
    /// ballot.
    Outbid(Ballot),
    /// The latest layout that the node knows to be decided: the answer to `Ask`, and the refusal of
    /// a request that this layout makes obsolete or contradicts.
    Known(Arc<Layout>),
    /// The node has no vote on this layout: it has no seat, its seat belongs to another disk, or it
    /// does not know the base.
    NoVote,
}

/// The parts of the state that must be durable before the reply is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The known layout.
    pub layout: bool,
    /// The vote: promise and accepted layout.
    pub vote: bool,
}

/// A voter identity of a node ([`Voter`]): a random number, or a hash of the directory's
/// incarnation and boot id. 0 on the wire and on disk stands for none; in memory `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoterId(pub u64);

impl VoterId {
    /// Converts a number from the wire or disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

/// A node's identity as a voter. The identity changes as soon as the node may have lost votes: with
/// its disk, or because its directory is an older copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voter {
    /// The node's id.
    pub node: NodeId,
    /// The voter id; `None` = the node has no votes until its next boot assigns a voter id.
    pub id: Option<VoterId>,
    /// True if the node never lost a vote, and so has a seat of the first layout, whose seats name
    /// nodes without voter ids.
    pub is_first: bool,
}

impl Voter {
    /// True if the seat belongs to this voter.
    pub(crate) fn has(&self, seat: &Seat) -> bool {
        let votes = if seat.voter.is_none() { self.is_first } else { seat.voter == self.id };
        seat.node == self.node && votes
    }
}

/// A node's part in the decisions: the latest layout known to be decided, and the node's vote on
/// its successor.
#[derive(Debug)]
pub struct LayoutVoter {
    own: Voter,
    known: Arc<Layout>,
    vote: Vote,
}

impl LayoutVoter {
    /// Restores the state from disk. `own` need not have a seat.
    pub fn new(own: Voter, known: Arc<Layout>, vote: Vote) -> Self {
        Self { own, known, vote }
    }

    /// Returns the node's voter identity.
    pub fn own(&self) -> Voter {
        self.own
    }

    /// Gives the node a new voter id and clears its vote, because it may have lost votes.
    pub fn replace_voter_id(&mut self, id: VoterId) {
        (self.own.id, self.own.is_first) = (Some(id), false);
        self.vote = Vote::default();
    }

    /// Notes that the node never lost a vote: no peer knows an earlier boot of it.
    pub fn mark_first(&mut self) {
        self.own.is_first = true;
    }

    /// True if the node's voter has a seat.
    pub fn has_seat(&self) -> bool {
        self.known.council.iter().any(|seat| self.own.has(seat))
    }

    /// Returns the latest layout known to be decided.
    pub fn known_layout(&self) -> &Arc<Layout> {
        &self.known
    }

    /// Returns the vote: promise and accepted layout.
    pub fn vote(&self) -> &Vote {
        &self.vote
    }

    /// Notes that a layout is decided. Returns false if this layout, or a later one, was known
    /// already, or if the layout belongs to a fork.
    pub fn learn(&mut self, layout: &Arc<Layout>) -> bool {
        let is_later = layout.epoch > self.known.epoch && self.known.shares_lineage_with(layout);
        if is_later {
            (self.known, self.vote) = (Arc::clone(layout), Vote::default());
        }
        is_later
    }

    /// Handles a vote request. Returns the reply, and the parts of the state that must be durable
    /// before the reply is sent.
    pub fn handle_request(&mut self, request: &VoteRequest) -> (VoteReply, Keep) {
        let layout = match request {
            VoteRequest::Prepare { base, .. } => self.learn(base),
            VoteRequest::Decided(layout) => self.learn(layout),
            VoteRequest::Accept { .. } | VoteRequest::Ask => false,
        };
        let reply = match request {
            VoteRequest::Ask => self.report(),
            VoteRequest::Decided(layout) if !self.known.shares_lineage_with(layout) => {
                self.report()
            }
            VoteRequest::Decided(_) => VoteReply::Learned,
            VoteRequest::Prepare { base, .. } if !self.known.shares_lineage_with(base) => {
                VoteReply::NoVote
            }
            VoteRequest::Prepare { base, .. } if self.known.epoch > base.epoch => self.report(),
            VoteRequest::Accept { layout, .. } if self.known.epoch >= layout.epoch => self.report(),
            _ if !self.has_seat() => VoteReply::NoVote,
            VoteRequest::Prepare { ballot, .. } if *ballot > self.vote.promise => {
                self.vote.promise = *ballot;
                let reply = VoteReply::Promise(self.vote.accepted.clone());
                return (reply, Keep { layout, vote: true });
            }
            VoteRequest::Accept { layout, .. } if !self.is_next(layout) => VoteReply::NoVote,
            VoteRequest::Accept { ballot, layout } if *ballot >= self.vote.promise => {
                let accepted = Some((*ballot, Arc::clone(layout)));
                self.vote = Vote { promise: *ballot, accepted };
                return (VoteReply::Accepted, Keep { layout: false, vote: true });
            }
            _ => VoteReply::Outbid(self.vote.promise),
        };
        (reply, Keep { layout, vote: false })
    }

    /// Returns a proposal of the layout that this node accepted without learning a decision; `None`
    /// if there is no such layout. The proposer may be gone, and perhaps no node knows that the
    /// layout is decided.
    pub fn undecided_proposal(&self) -> Option<Proposal> {
        let (_, layout) = self.vote.accepted.as_ref()?;
        Some(Proposal::new(Arc::clone(&self.known), Arc::clone(layout), self.vote.promise + 1))
    }

    fn report(&self) -> VoteReply {
        VoteReply::Known(Arc::clone(&self.known))
    }

    fn is_next(&self, layout: &Layout) -> bool {
        layout.epoch == self.known.epoch + 1 && layout.base == self.known.id()
    }
}

#[derive(Debug)]
enum Phase {
    Preparing,
    Accepting,
    /// The layout is decided; the new metadata quorum has yet to learn it.
    HandingOver,
    Done,
}

/// The effect of a reply on a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProposalStep {
    /// The next phase begins: send [`Proposal::requests`].
    NextPhase,
    /// This layout is decided; the new metadata quorum has yet to learn it.
    Decided(Arc<Layout>),
    /// A majority of the new metadata quorum has learned this layout: nodes that left may be
    /// switched off.
    Done(Arc<Layout>),
    /// A later layout is known: the change must be planned again on that layout.
    Overtaken(Arc<Layout>),
    /// A competing proposal has this ballot: retry after a backoff, under a higher ballot.
    Outbid(Ballot),
}

/// A proposal of a layout, driven through the phases of the decision.
#[derive(Debug)]
pub struct Proposal {
    base: Arc<Layout>,
    /// The proposed layout: the caller's own, or a layout that a promise reported as accepted.
    layout: Arc<Layout>,
    ballot: Ballot,
    phase: Phase,
    /// Of the accepted layouts that promises have reported, the one with the highest ballot.
    accepted: Option<(Ballot, Arc<Layout>)>,
    /// The nodes that have completed the phase.
    completed: Vec<NodeId>,
}

impl Proposal {
    /// Creates a proposal to be decided by the metadata quorum of `base`.
    pub fn new(base: Arc<Layout>, layout: Arc<Layout>, ballot: Ballot) -> Self {
        assert_eq!(layout.base, base.id(), "a plan belongs to one base");
        let phase = Phase::Preparing;
        Self { base, layout, ballot, phase, accepted: None, completed: Vec::new() }
    }

    /// Creates a proposal of a decided layout that a majority of its metadata quorum must learn.
    pub(crate) fn of_decided(layout: Arc<Layout>) -> Self {
        let (base, phase) = (Arc::clone(&layout), Phase::HandingOver);
        Self { base, layout, ballot: 0, phase, accepted: None, completed: Vec::new() }
    }

    /// Returns the proposed layout: the caller's own, or a layout that a promise reported as
    /// accepted.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns the requests to send, or to repeat, to every node that has not completed the phase.
    pub fn requests(&self) -> Vec<(NodeId, VoteRequest)> {
        let request = match self.phase {
            Phase::Preparing => {
                VoteRequest::Prepare { base: Arc::clone(&self.base), ballot: self.ballot }
            }
            Phase::Accepting => {
                VoteRequest::Accept { ballot: self.ballot, layout: Arc::clone(&self.layout) }
            }
            Phase::HandingOver => VoteRequest::Decided(Arc::clone(&self.layout)),
            Phase::Done => return Vec::new(),
        };
        let asked = self.voters().iter().map(|seat| seat.node);
        let asked = asked.filter(|node| !self.completed.contains(node));
        asked.map(|node| (node, request.clone())).collect()
    }

    /// Handles a node's reply. Returns the effect of the reply, or `None` if there is none.
    pub fn handle_reply(&mut self, from: NodeId, reply: VoteReply) -> Option<ProposalStep> {
        match (&self.phase, reply) {
            (Phase::Done, _) | (_, VoteReply::NoVote) => None,
            (Phase::HandingOver, VoteReply::Learned) => self.count_done(from).then(|| {
                self.phase = Phase::Done;
                ProposalStep::Done(Arc::clone(&self.layout))
            }),
            (Phase::HandingOver, _) => None,
            // The replying node already knows that the proposed layout is decided.
            (_, VoteReply::Known(known)) if known.id() == self.layout.id() => {
                Some(self.finish_decision())
            }
            (_, VoteReply::Known(known)) => Some(ProposalStep::Overtaken(known)),
            (_, VoteReply::Outbid(ballot)) => Some(ProposalStep::Outbid(ballot)),
            (Phase::Preparing, VoteReply::Promise(accepted)) => {
                let ballot = |of: &Option<(Ballot, Arc<Layout>)>| of.as_ref().map_or(0, |of| of.0);
                if ballot(&accepted) > ballot(&self.accepted) {
                    self.accepted = accepted;
                }
                self.count_done(from).then(|| {
                    if let Some((_, layout)) = self.accepted.take() {
                        self.layout = layout;
                    }
                    self.enter(Phase::Accepting);
                    ProposalStep::NextPhase
                })
            }
            (Phase::Accepting, VoteReply::Accepted) => {
                self.count_done(from).then(|| self.finish_decision())
            }
            // Late replies to requests of an earlier phase.
            (Phase::Preparing, VoteReply::Accepted)
            | (Phase::Accepting, VoteReply::Promise(_))
            | (_, VoteReply::Learned) => None,
        }
    }

    fn finish_decision(&mut self) -> ProposalStep {
        self.enter(Phase::HandingOver);
        ProposalStep::Decided(Arc::clone(&self.layout))
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.completed.clear();
    }

    /// Returns the seats whose replies the phase needs: those of the base or, once the layout is
    /// decided, those of the layout.
    fn voters(&self) -> &[Seat] {
        match self.phase {
            Phase::Preparing | Phase::Accepting => &self.base.council,
            Phase::HandingOver | Phase::Done => &self.layout.council,
        }
    }

    /// Counts a node as having completed the phase. Returns true if the node completes a majority.
    fn count_done(&mut self, node: NodeId) -> bool {
        let has_seat = self.voters().iter().any(|seat| seat.node == node);
        if !has_seat || self.completed.contains(&node) {
            return false;
        }
        self.completed.push(node);
        self.completed.len() == self.voters().len() / 2 + 1
    }
}

#[cfg(test)]
mod tests;
