//! How the next layout is decided: by the council of the last one, in one decision of Paxos.
//!
//! ```text
//!   proposal                              councillors of the base, layout e
//!   ── prepare (base, ballot) ──────────▶ learn the base; promise, durably        ┐ a majority
//!   ◀─ promise (what it has accepted) ──                                          ┘
//!   ── accept (ballot, layout e + 1) ───▶ store it, durably                       ┐ a majority:
//!   ◀─ accepted ────────────────────────                                          ┘ it is decided
//!   ── decided (layout e + 1) ──────────▶ the *new* council learns it, durably    ┐ a majority:
//!   ◀─ learned ─────────────────────────                                          ┘ it is done
//! ```
//!
//! The layout that was accepted under the highest ballot goes before one's own. Two proposals may
//! have one ballot: a councillor promises each ballot once, so one of them has no majority. A
//! councillor votes about the successor of the layout that it knows, and about no other; what was
//! decided on a fork (`decree.rs`) it does not learn. Each rule, and what comes of it if it is left
//! out, is in docs/membership-model.md;
//! `crates/cluster/tests/membership` is its model.
//!
//! Lamport, "The Part-Time Parliament", ACM TOCS 16(2), 1998; a chain of single decisions:
//! "Vertical Paxos and primary-backup replication", PODC 2009, section 3.

use std::sync::Arc;

use super::{Layout, Seat};
use crate::node_id::NodeId;

/// Ballots are counted from 1; 0 = none.
pub type Ballot = u64;

/// What a councillor has promised and accepted about the successor of the layout that it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vote {
    /// The greatest ballot that it has promised.
    pub promise: Ballot,
    /// What it accepted last, and under which ballot.
    pub accepted: Option<(Ballot, Arc<Layout>)>,
}

/// What a councillor is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteRequest {
    /// Which layout it goes by. Whoever is asked need be no councillor.
    Ask,
    /// To promise a ballot about the successor of this layout.
    Prepare {
        /// The layout to be succeeded.
        base: Arc<Layout>,
        /// The ballot to promise.
        ballot: Ballot,
    },
    /// To accept a successor.
    Accept {
        /// The ballot under which it is proposed.
        ballot: Ballot,
        /// The successor to accept.
        layout: Arc<Layout>,
    },
    /// To go by a layout that is decided. Whoever is asked need be no councillor.
    Decided(Arc<Layout>),
}

/// What it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoteReply {
    /// It has promised; this is what it accepted before.
    Promise(Option<(Ballot, Arc<Layout>)>),
    /// It has stored the layout.
    Accepted,
    /// It goes by a layout that is decided, or by a later one. That it has accepted it would say
    /// less.
    Learned,
    /// It has promised this ballot before.
    Outbid(Ballot),
    /// A layout of that epoch, or of a later one, is decided.
    Known(Arc<Layout>),
    /// It has no vote about that: no seat, another disk than the one that has the seat, or it does
    /// not know the layout before.
    NoVote,
}

/// What must be durable before a reply is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The layout that it knows.
    pub layout: bool,
    /// The vote: what it has promised and accepted.
    pub vote: bool,
}

/// Which voter a node is ([`Voter`]): a random number, or the hash of a life of its directory. On
/// the wire and on disk 0 stands for none, here `None` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VoterId(pub u64);

impl VoterId {
    /// That of a number on the wire or on disk, where 0 stands for none.
    pub fn of_number(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

/// Who a node is as a voter: it is another one as soon as it may have lost votes, with its disk or
/// because its directory is an older copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voter {
    /// The node's id.
    pub node: NodeId,
    /// `None` = it has no votes until its life begins.
    pub id: Option<VoterId>,
    /// Whether it never lost a vote: then it has the seat of the first layout, which names nodes
    /// alone.
    pub is_first: bool,
}

impl Voter {
    /// Whether a seat is this voter's.
    pub(crate) fn has(&self, seat: &Seat) -> bool {
        let votes = if seat.voter.is_none() { self.is_first } else { seat.voter == self.id };
        seat.node == self.node && votes
    }
}

/// A node's part: what it knows to be decided, and its vote about what comes next.
#[derive(Debug)]
pub struct Council {
    own: Voter,
    known: Arc<Layout>,
    vote: Vote,
}

impl Council {
    /// As a start finds it on the node's disk. `own` need have no seat.
    pub fn new(own: Voter, known: Arc<Layout>, vote: Vote) -> Self {
        Self { own, known, vote }
    }

    /// Who it is as a voter.
    pub fn own(&self) -> Voter {
        self.own
    }

    /// It may have lost votes: it is another voter from here on.
    pub fn loses_votes(&mut self, id: VoterId) {
        (self.own.id, self.own.is_first) = (Some(id), false);
        self.vote = Vote::default();
    }

    /// It never lost a vote: nobody knows a former life of it.
    pub fn is_first(&mut self) {
        self.own.is_first = true;
    }

    /// Whether it has a seat.
    pub fn has_seat(&self) -> bool {
        self.known.council.iter().any(|seat| self.own.has(seat))
    }

    /// The last layout that is known to be decided.
    pub fn known(&self) -> &Arc<Layout> {
        &self.known
    }

    /// The vote: what it has promised and accepted.
    pub fn vote(&self) -> &Vote {
        &self.vote
    }

    /// A layout is decided. Returns `false` if that was known, or a later one is, or if it is one
    /// of a fork.
    pub fn learn(&mut self, layout: &Arc<Layout>) -> bool {
        let is_later = layout.epoch > self.known.epoch && self.known.is_of_one_line(layout);
        if is_later {
            (self.known, self.vote) = (Arc::clone(layout), Vote::default());
        }
        is_later
    }

    /// It is asked to vote, or told what was decided.
    pub fn asked(&mut self, request: &VoteRequest) -> (VoteReply, Keep) {
        let layout = match request {
            VoteRequest::Prepare { base, .. } => self.learn(base),
            VoteRequest::Decided(layout) => self.learn(layout),
            VoteRequest::Accept { .. } | VoteRequest::Ask => false,
        };
        let reply = match request {
            VoteRequest::Ask => self.report(),
            VoteRequest::Decided(layout) if !self.known.is_of_one_line(layout) => self.report(),
            VoteRequest::Decided(_) => VoteReply::Learned,
            VoteRequest::Prepare { base, .. } if !self.known.is_of_one_line(base) => {
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

    /// A proposal of what this councillor accepted and has no decision on: its proposer may be
    /// gone, and nobody else may know that it is decided.
    pub fn completed(&self) -> Option<Proposal> {
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
    /// It is decided; the new council has to know it.
    HandingOver,
    Done,
}

/// What a reply brings about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposed {
    /// Others must be asked for something else: see [`Proposal::requests`].
    GoesOn,
    /// This layout is decided; the new council must still learn of it.
    Decided(Arc<Layout>),
    /// A majority of the new council knows it: whoever left may be switched off.
    Done(Arc<Layout>),
    /// A later layout is known. What is wanted must be planned anew, on that one.
    Overtaken(Arc<Layout>),
    /// Another one is at it: it must be tried again a little later, under a ballot above this one.
    Outbid(Ballot),
}

/// A layout that somebody puts to the vote.
#[derive(Debug)]
pub struct Proposal {
    base: Arc<Layout>,
    /// What it proposes: its own, until another one turns out to be accepted.
    layout: Arc<Layout>,
    ballot: Ballot,
    phase: Phase,
    /// What was accepted under the highest ballot of those who promised.
    accepted: Option<(Ballot, Arc<Layout>)>,
    /// Those that did what the phase asks.
    did: Vec<NodeId>,
}

impl Proposal {
    /// To be decided by the council of `base`.
    pub fn new(base: Arc<Layout>, layout: Arc<Layout>, ballot: Ballot) -> Self {
        assert_eq!(layout.base, base.id(), "a plan belongs to one base");
        let phase = Phase::Preparing;
        Self { base, layout, ballot, phase, accepted: None, did: Vec::new() }
    }

    /// Of a layout that is decided, and that a majority of its council must learn of.
    pub(crate) fn of_decided(layout: Arc<Layout>) -> Self {
        let (base, phase) = (Arc::clone(&layout), Phase::HandingOver);
        Self { base, layout, ballot: 0, phase, accepted: None, did: Vec::new() }
    }

    /// What it proposes: another one than was wanted, if that turned out to be accepted.
    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// What is to be asked of whom, or asked again: of all that have not done what the phase asks.
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
        let asked = asked.filter(|node| !self.did.contains(node));
        asked.map(|node| (node, request.clone())).collect()
    }

    /// A node said something to what it was asked last.
    pub fn replied(&mut self, from: NodeId, reply: VoteReply) -> Option<Proposed> {
        match (&self.phase, reply) {
            (Phase::Done, _) | (_, VoteReply::NoVote) => None,
            (Phase::HandingOver, VoteReply::Learned) => self.does(from).then(|| {
                self.phase = Phase::Done;
                Proposed::Done(Arc::clone(&self.layout))
            }),
            (Phase::HandingOver, _) => None,
            // It may be this one: another node found that it is decided.
            (_, VoteReply::Known(known)) if known.id() == self.layout.id() => {
                Some(self.is_decided())
            }
            (_, VoteReply::Known(known)) => Some(Proposed::Overtaken(known)),
            (_, VoteReply::Outbid(ballot)) => Some(Proposed::Outbid(ballot)),
            (Phase::Preparing, VoteReply::Promise(accepted)) => {
                let ballot = |of: &Option<(Ballot, Arc<Layout>)>| of.as_ref().map_or(0, |of| of.0);
                if ballot(&accepted) > ballot(&self.accepted) {
                    self.accepted = accepted;
                }
                self.does(from).then(|| {
                    if let Some((_, layout)) = self.accepted.take() {
                        self.layout = layout;
                    }
                    self.enter(Phase::Accepting);
                    Proposed::GoesOn
                })
            }
            (Phase::Accepting, VoteReply::Accepted) => self.does(from).then(|| self.is_decided()),
            // To what was asked before.
            (Phase::Preparing, VoteReply::Accepted)
            | (Phase::Accepting, VoteReply::Promise(_))
            | (_, VoteReply::Learned) => None,
        }
    }

    fn is_decided(&mut self) -> Proposed {
        self.enter(Phase::HandingOver);
        Proposed::Decided(Arc::clone(&self.layout))
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.did.clear();
    }

    /// Who votes, or has to know the result.
    fn voters(&self) -> &[Seat] {
        match self.phase {
            Phase::Preparing | Phase::Accepting => &self.base.council,
            Phase::HandingOver | Phase::Done => &self.layout.council,
        }
    }

    /// A node has done its part. Whether a majority has, now.
    fn does(&mut self, node: NodeId) -> bool {
        let has_seat = self.voters().iter().any(|seat| seat.node == node);
        if !has_seat || self.did.contains(&node) {
            return false;
        }
        self.did.push(node);
        self.did.len() == self.voters().len() / 2 + 1
    }
}

#[cfg(test)]
mod tests;
