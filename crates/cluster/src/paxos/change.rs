//! What is known of a conditional write under way, and of each replica's part in it.

use crate::clock::follows_another;
use crate::event::{ClientId, FailureKind, OpId, Part, SlotId};
use crate::message::NodeId;
use crate::paxos::operation::{Conditional, Done, has_idempotency_key};
use crate::paxos::recent::Recalled;
use crate::paxos::turns::Turn;
use crate::request::acks::ReplicaSet;
use crate::request::part::{Errand, ReplicaError, VoteAt, Way, failure};
use crate::request::read::read_votes::Reader;
use crate::request::reported::ReportedRecord;
use crate::request::sets::{self, PerSet};
use record::{Rank, Record};

/// A conditional write under way.
#[derive(Debug)]
pub(crate) struct ChangeWork {
    pub(crate) asker: Asker,
    pub(crate) conditional: Conditional,
    /// What it is known by, however often it is tried.
    pub(crate) id: u64,
    pub(crate) stage: ChangeStage,
    /// When it began to wait for its turn; then, when promises were asked for, by it or by the one
    /// that it goes on from.
    pub(crate) since: u64,
    /// How often it was tried.
    pub(crate) tries: u32,
    /// Its turn, if it has it.
    pub(crate) turn: Option<InTurn>,
    /// Others of the key that are done in its round.
    pub(crate) followers: Vec<SlotId>,
    /// Whether another node may have begun it, or may yet.
    pub(crate) elsewhere: bool,
    /// Whether a try may have been stored by replicas of an earlier view, which are not asked now.
    pub(crate) of_earlier_view: bool,
    /// For a reader: the newest record of those that a majority held.
    pub(crate) found: Option<Record>,
    /// What a replica may hold of an earlier try.
    pub(crate) tried: Option<Tried>,
    /// One for each replica.
    pub(crate) votes: Vec<ChangeVote>,
}

/// The turn that a write has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InTurn {
    pub(crate) turn: Turn,
    /// How many rounds of this loop there were in a row.
    pub(crate) in_a_row: u32,
}

/// Who asked for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Asker {
    Client(ClientId),
    /// A read of what too few hold, as it turned out.
    Reader(Reader),
    /// Another node, whose request it is.
    Peer(OpId),
}

/// A try whose record may be held.
#[derive(Debug)]
pub(crate) struct Tried {
    /// The record of the last one.
    pub(crate) record: Record,
    /// What that comes to.
    pub(crate) then: Done,
    /// Which step of the family it would have been, the first time.
    pub(crate) step: u32,
    /// The ballot of the first one.
    pub(crate) since: u64,
}

/// How far it is.
#[derive(Debug)]
pub(crate) enum ChangeStage {
    /// Replicas are asked to promise `ballot`. `watermark` is this node's as it asked: once it
    /// rises, the promises are void.
    Preparing { ballot: u64, watermark: u64 },
    /// They are asked to store this record; then the client is answered this.
    Storing { record: Record, then: Done },
    /// The key's home was asked to do it.
    Forwarded,
    /// The home goes by a later view than this node, which is about to as well, and refused.
    Behind,
    /// Others of the key come first.
    Queued,
    /// It is done in the round of another one; then it is answered this.
    Follows(Done),
    /// It was outbid, and is tried again a little later.
    Pausing,
    /// The client was answered; replicas that have yet to say whether they store the record may
    /// miss it.
    Answered(Option<Record>),
}

/// One replica's part.
#[derive(Debug)]
pub(crate) struct ChangeVote {
    pub(crate) node: NodeId,
    pub(crate) place: PerSet,
    pub(crate) state: ChangeState,
    /// What it held when it promised.
    pub(crate) reported: Option<ReportedRecord>,
    /// What it knows of an earlier try.
    pub(crate) recalled: Option<Recalled>,
}

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeState {
    /// It was asked for a promise, or to store the record.
    Asked(Errand),
    /// It has promised.
    Promised,
    /// It has promised, and reported what it holds. It is only in the other set and does not have
    /// all of the partition yet, so its report says nothing about older writes.
    ReceiverPromised,
    /// It has promised, reported a long record, and was asked to send it.
    Fetching(Errand),
    /// It has promised, and was asked what it knows of an earlier try.
    Recalling(Errand),
    /// It stored the record.
    Stored,
    /// It did not do its part.
    Failed(ReplicaError),
}

impl ChangeState {
    fn errand_mut(&mut self) -> Option<&mut Errand> {
        match self {
            Self::Asked(errand) | Self::Fetching(errand) | Self::Recalling(errand) => Some(errand),
            Self::Promised | Self::ReceiverPromised | Self::Stored | Self::Failed(_) => None,
        }
    }

    pub(crate) fn is_asked(self) -> bool {
        matches!(self, Self::Asked(_))
    }

    pub(crate) fn has_promised(self) -> bool {
        matches!(self, Self::Promised | Self::Fetching(_) | Self::Recalling(_))
    }

    /// The same state, of something that is asked now.
    pub(crate) fn anew(self, errand: Errand) -> Self {
        match self {
            Self::Fetching(_) => Self::Fetching(errand),
            Self::Recalling(_) => Self::Recalling(errand),
            Self::Asked(_)
            | Self::Promised
            | Self::ReceiverPromised
            | Self::Stored
            | Self::Failed(_) => Self::Asked(errand),
        }
    }
}

impl ChangeVote {
    pub(crate) fn new(node: NodeId, place: PerSet) -> Self {
        let state = ChangeState::Asked(Errand { since: 0, way: Way::Waits });
        Self { node, place, state, reported: None, recalled: None }
    }

    /// Whether it stores nothing under a lower ballot any more, and what it reported counts.
    pub(crate) fn is_bound(&self) -> bool {
        self.state.has_promised() || self.state == ChangeState::ReceiverPromised
    }

    /// Returns whether the replica is known to hold the newest record, of this rank. A receiver
    /// may have been streamed a conditional write's record without accepting it: then it does not
    /// count as a holder.
    pub(crate) fn holds(&self, newest: Option<Rank>) -> bool {
        let is_plain = newest.is_none_or(|newest| newest.ballot == 0);
        let counts =
            self.state.has_promised() || self.state == ChangeState::ReceiverPromised && is_plain;
        counts && self.rank() == newest
    }

    pub(crate) fn rank(&self) -> Option<Rank> {
        self.reported.as_ref().map(ReportedRecord::rank)
    }
}

impl ChangeWork {
    pub(crate) fn is_forwarded(&self) -> bool {
        matches!(self.stage, ChangeStage::Forwarded)
    }

    /// Whether a record is stored by a promise of before.
    pub(crate) fn is_going_on(&self) -> bool {
        let ChangeStage::Storing { record, .. } = &self.stage else { return false };
        follows_another(record.ballot())
    }

    /// How many votes there are in each set.
    pub(crate) fn count(&self, wanted: impl Fn(ChangeState) -> bool) -> PerSet {
        self.count_votes(|vote| wanted(vote.state))
    }

    pub(crate) fn count_votes(&self, wanted: impl Fn(&ChangeVote) -> bool) -> PerSet {
        sets::count(self.votes.iter().filter(|vote| wanted(vote)).map(|vote| vote.place))
    }

    /// The vote of a node that has yet to reply; `None` = what it says is stale.
    pub(crate) fn awaited(&self, node: NodeId) -> Option<VoteAt> {
        // What was asked before is stale.
        if self.waits() {
            return None;
        }
        let is_it = |vote: &ChangeVote| {
            let mut state = vote.state;
            vote.node == node && state.errand_mut().is_some()
        };
        self.votes.iter().position(is_it).map(VoteAt)
    }

    /// What a node was asked and has not replied to.
    pub(crate) fn errand_of(&mut self, node: NodeId) -> Option<&mut Errand> {
        let VoteAt(vote) = self.awaited(node)?;
        self.votes[vote].state.errand_mut()
    }

    /// Whether nobody is asked anything now.
    fn waits(&self) -> bool {
        matches!(
            self.stage,
            ChangeStage::Pausing
                | ChangeStage::Queued
                | ChangeStage::Follows(_)
                | ChangeStage::Behind
        )
    }

    /// The replicas of the set that is read whose votes are like this.
    pub(crate) fn replicas(&self, wanted: impl Fn(&ChangeVote) -> bool) -> ReplicaSet {
        let votes = self.votes.iter().filter(|vote| wanted(vote));
        ReplicaSet::of(votes.map(|vote| usize::from(vote.place.read)))
    }

    /// The replicas that have promised.
    pub(crate) fn promised(&self) -> impl Iterator<Item = &ChangeVote> + Clone {
        self.votes.iter().filter(|vote| vote.state.has_promised())
    }

    fn failures(&self) -> impl Iterator<Item = ReplicaError> + Clone {
        self.votes.iter().filter_map(|vote| match vote.state {
            ChangeState::Failed(error) => Some(error),
            _ => None,
        })
    }

    pub(crate) fn failure(&self) -> FailureKind {
        let did = |state: ChangeState| state.has_promised() || state == ChangeState::Stored;
        // One that pauses waits for no other write: its replicas say why it is not done.
        let waits = self.waits() && !matches!(self.stage, ChangeStage::Pausing);
        if !self.is_begun() && (self.is_outbid() || waits) {
            FailureKind::Busy
        } else if !self.count(did).is_none() {
            FailureKind::TooFew
        } else {
            failure(self.failures())
        }
    }

    /// Whether it is known that it was never tried, by whomever: then it may be done together with
    /// others.
    pub(crate) fn is_fresh(&self) -> bool {
        self.tried.is_none() && !self.elsewhere && !has_idempotency_key(self.id)
    }

    /// Whether a record of it may be held somewhere, or come to be.
    pub(crate) fn is_begun(&self) -> bool {
        self.tried.is_some() || self.elsewhere || self.is_forwarded()
    }

    /// Whether another try may succeed where this one can't: something was in its way that passes,
    /// or it is to be found out what became of it.
    pub(crate) fn is_worth_another_try(&self) -> bool {
        let passes = |error| matches!(error, ReplicaError::Outbid | ReplicaError::NotAuthoritative);
        self.is_begun() || self.failures().any(passes)
    }

    /// Whether a replica has promised others a higher ballot.
    pub(crate) fn is_outbid(&self) -> bool {
        self.failures().any(|error| error == ReplicaError::Outbid)
    }

    /// What each replica did.
    pub(crate) fn parts(&self) -> Vec<(NodeId, Part)> {
        let part = |vote: &ChangeVote| match vote.state {
            ChangeState::Asked(_) | ChangeState::Fetching(_) | ChangeState::Recalling(_) => {
                Part::Open
            }
            ChangeState::Promised | ChangeState::ReceiverPromised | ChangeState::Stored => {
                Part::Done
            }
            ChangeState::Failed(error) => error.part(),
        };
        self.votes.iter().map(|vote| (vote.node, part(vote))).collect()
    }
}
