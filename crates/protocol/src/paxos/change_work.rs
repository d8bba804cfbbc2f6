//! The state of an unfinished conditional write, with each replica's part in it.

use crate::clock::is_following_ballot;
use crate::event::{ClientId, FailureKind, OpId, ReplicaOutcome, SlotId};
use crate::message::NodeId;
use crate::paxos::key_locks::KeyLock;
use crate::paxos::operation::{Conditional, Done, has_idempotency_key};
use crate::paxos::recent::OpLookup;
use crate::request::outstanding::{Delivery, Outstanding, ReplicaError, VoteIndex, failure};
use crate::request::read::read_votes::ReadRequester;
use crate::request::receipt::ReplicaSet;
use crate::request::reported::ReportedRecord;
use crate::request::sets::{self, PerSet};
use record::{Rank, Record};

/// An unfinished conditional write.
#[derive(Debug)]
pub(crate) struct ChangeWork {
    pub(crate) asker: ChangeRequester,
    pub(crate) conditional: Conditional,
    /// The id of the write, the same for all tries.
    pub(crate) id: u64,
    pub(crate) stage: ChangeStage,
    /// The time at which the write was queued for its key lock; later, the time at which its
    /// promises were requested, by this write or by an earlier write of the key. In microseconds of
    /// the monotonic clock.
    pub(crate) since: u64,
    /// The number of tries.
    pub(crate) tries: u32,
    /// The key lock, if this write holds it.
    pub(crate) held: Option<HeldLock>,
    /// Other writes of the key that this write's round carries out.
    pub(crate) followers: Vec<SlotId>,
    /// True if another node may have begun the write, or may still begin it.
    pub(crate) elsewhere: bool,
    /// True if a try may be stored on replicas of an earlier view, which are no longer asked.
    pub(crate) was_tried_under_earlier_view: bool,
    /// For a reader: the newest record that the promising majority reported.
    pub(crate) found: Option<Record>,
    /// The earlier try that a replica may hold.
    pub(crate) tried: Option<EarlierTry>,
    /// One vote for each replica.
    pub(crate) votes: Vec<ChangeVote>,
}

/// A key lock that a write holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLock {
    pub(crate) lock: KeyLock,
    /// The number of consecutive rounds of this loop under the lock.
    pub(crate) in_a_row: u32,
}

/// The requester of a conditional write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChangeRequester {
    Client(ClientId),
    /// A read that found a record on too few replicas; `None` = that read begins anew, and needs no
    /// answer.
    Reader(Option<ReadRequester>),
    /// Another node, by the id of its request.
    Peer(OpId),
}

/// A try whose record a replica may hold.
#[derive(Debug)]
pub(crate) struct EarlierTry {
    /// The record of the last try.
    pub(crate) record: Record,
    /// The outcome of the write if that record is chosen.
    pub(crate) then: Done,
    /// The lowest step number of the write in any of its tries.
    pub(crate) step: u32,
    /// The ballot of the first try.
    pub(crate) since: u64,
}

/// The stage of a conditional write.
#[derive(Debug)]
pub(crate) enum ChangeStage {
    /// Replicas are asked to promise `ballot`. `watermark` is this node's watermark at the request:
    /// the promises are void once the watermark rises.
    Preparing { ballot: u64, watermark: u64 },
    /// Replicas are asked to store this record; `then` is the answer afterwards. `None` = `record`
    /// is the newest record, whose operations a majority must note before the write adds its own.
    Storing { record: Record, then: Option<Done> },
    /// The key's leader was asked to do the write.
    Forwarded,
    /// The leader refused because its view is later. This node is about to switch to that view.
    Behind,
    /// The write waits for other writes of the key.
    Queued,
    /// The write is carried out in another write's round, and is then answered with this outcome.
    Batched(Done),
    /// The write was outbid, and is retried after a pause.
    Pausing,
    /// The requester was answered. A replica that has not confirmed the record may have missed it.
    Answered(Option<Record>),
}

/// The vote of one replica.
#[derive(Debug)]
pub(crate) struct ChangeVote {
    pub(crate) node: NodeId,
    pub(crate) place: PerSet,
    pub(crate) state: ChangeState,
    /// The record that the replica held when it promised.
    pub(crate) reported: Option<ReportedRecord>,
    /// The replica's answer about an earlier try.
    pub(crate) recalled: Option<OpLookup>,
}

/// The state of a replica in a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeState {
    /// The replica was asked for a promise, or to store the record.
    Asked(Outstanding),
    /// The replica has promised, and no further request to it is outstanding.
    Promised,
    /// The replica has promised and reported its record. Its report proves nothing about older
    /// writes: the replica is only in the other set, and has not pulled the whole partition yet.
    ReceiverPromised,
    /// The replica has promised and reported a long record, and was asked for the record's content.
    Fetching(Outstanding),
    /// The replica has promised, and was asked about an earlier try.
    Recalling(Outstanding),
    /// The replica has stored the record.
    Stored,
    /// The replica did not do its part.
    Failed(ReplicaError),
}

impl ChangeState {
    fn outstanding_mut(&mut self) -> Option<&mut Outstanding> {
        match self {
            Self::Asked(outstanding)
            | Self::Fetching(outstanding)
            | Self::Recalling(outstanding) => Some(outstanding),
            Self::Promised | Self::ReceiverPromised | Self::Stored | Self::Failed(_) => None,
        }
    }

    pub(crate) fn is_asked(self) -> bool {
        matches!(self, Self::Asked(_))
    }

    pub(crate) fn has_promised(self) -> bool {
        matches!(self, Self::Promised | Self::Fetching(_) | Self::Recalling(_))
    }

    /// Returns the same state, for a request that is sent now.
    pub(crate) fn anew(self, outstanding: Outstanding) -> Self {
        match self {
            Self::Fetching(_) => Self::Fetching(outstanding),
            Self::Recalling(_) => Self::Recalling(outstanding),
            Self::Asked(_)
            | Self::Promised
            | Self::ReceiverPromised
            | Self::Stored
            | Self::Failed(_) => Self::Asked(outstanding),
        }
    }
}

impl ChangeVote {
    pub(crate) fn new(node: NodeId, place: PerSet) -> Self {
        let state = ChangeState::Asked(Outstanding { since: 0, delivery: Delivery::Waits });
        Self { node, place, state, reported: None, recalled: None }
    }

    /// True if the replica has promised to store nothing under a lower ballot, and has reported its
    /// record.
    pub(crate) fn is_bound(&self) -> bool {
        self.state.has_promised() || self.state == ChangeState::ReceiverPromised
    }

    /// True if the replica is known to hold the newest record, which has the rank `newest`. Of a
    /// conditional write's record, a receiver does not count as a holder: the record may have been
    /// streamed to it, without its acceptance.
    pub(crate) fn holds(&self, newest: Option<Rank>) -> bool {
        let is_plain = newest.is_none_or(|newest| newest.ballot == 0);
        let counts =
            self.state.has_promised() || self.state == ChangeState::ReceiverPromised && is_plain;
        counts && self.rank() == newest
    }

    /// True if the replica has promised, and replied that it accepted the write under `ballot`,
    /// with this outcome.
    pub(crate) fn has_accepted(&self, ballot: u64, done: Done) -> bool {
        let Some(OpLookup::Stored { ballots, done: own }) = self.recalled else { return false };
        self.state.has_promised() && own == done && ballots.has(ballot)
    }

    /// True if the replica has promised, and replied that it stored the write with this outcome.
    pub(crate) fn remembers(&self, done: Done) -> bool {
        let Some(OpLookup::Stored { done: own, .. } | OpLookup::Chosen { done: own }) =
            self.recalled
        else {
            return false;
        };
        self.state.has_promised() && own == done
    }

    pub(crate) fn rank(&self) -> Option<Rank> {
        self.reported.as_ref().map(ReportedRecord::rank)
    }
}

impl ChangeWork {
    pub(crate) fn is_forwarded(&self) -> bool {
        matches!(self.stage, ChangeStage::Forwarded)
    }

    /// True if replicas are asked to store a record under promises given to an earlier write.
    pub(crate) fn continues_earlier_promise(&self) -> bool {
        let ChangeStage::Storing { record, .. } = &self.stage else { return false };
        is_following_ballot(record.ballot())
    }

    /// Counts the votes in a wanted state, in each set.
    pub(crate) fn count(&self, wanted: impl Fn(ChangeState) -> bool) -> PerSet {
        self.count_votes(|vote| wanted(vote.state))
    }

    pub(crate) fn count_votes(&self, wanted: impl Fn(&ChangeVote) -> bool) -> PerSet {
        sets::count(self.votes.iter().filter(|vote| wanted(vote)).map(|vote| vote.place))
    }

    /// Returns the vote of a node that has not replied yet; `None` = the node's message is stale.
    pub(crate) fn awaited_vote(&self, node: NodeId) -> Option<VoteIndex> {
        // In these stages no request is outstanding, so any reply is stale.
        if self.waits() {
            return None;
        }
        let is_it = |vote: &ChangeVote| {
            let mut state = vote.state;
            vote.node == node && state.outstanding_mut().is_some()
        };
        self.votes.iter().position(is_it).map(VoteIndex)
    }

    /// Returns the outstanding request to a node.
    pub(crate) fn outstanding_at(&mut self, node: NodeId) -> Option<&mut Outstanding> {
        let VoteIndex(vote) = self.awaited_vote(node)?;
        self.votes[vote].state.outstanding_mut()
    }

    /// True if the stage has no outstanding requests.
    fn waits(&self) -> bool {
        matches!(
            self.stage,
            ChangeStage::Pausing
                | ChangeStage::Queued
                | ChangeStage::Batched(_)
                | ChangeStage::Behind
        )
    }

    /// Returns the replicas of the read set whose votes match.
    pub(crate) fn replicas(&self, wanted: impl Fn(&ChangeVote) -> bool) -> ReplicaSet {
        let votes = self.votes.iter().filter(|vote| wanted(vote));
        ReplicaSet::of(votes.map(|vote| usize::from(vote.place.read)))
    }

    /// Returns the votes of the replicas that have promised.
    pub(crate) fn promising_votes(&self) -> impl Iterator<Item = &ChangeVote> + Clone {
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
        // A pausing write does not wait for another write, so its replicas' errors are the reason
        // for its failure.
        let waits = self.waits() && !matches!(self.stage, ChangeStage::Pausing);
        if !self.is_begun() && (self.is_outbid() || waits) {
            FailureKind::Busy
        } else if !self.count(did).is_zero() {
            FailureKind::TooFew
        } else {
            failure(self.failures())
        }
    }

    /// True if no node can have tried the write, so that a round may combine it with others.
    pub(crate) fn is_fresh(&self) -> bool {
        self.tried.is_none() && !self.elsewhere && !has_idempotency_key(self.id)
    }

    /// Returns true if this is a read that needs a majority, not a write.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.asker, ChangeRequester::Reader(_))
    }

    /// True if some replica may hold a record of the write or still store one.
    pub(crate) fn is_begun(&self) -> bool {
        self.tried.is_some() || self.elsewhere || self.is_forwarded()
    }

    /// True if another try may succeed, because the obstacle is temporary or the outcome is
    /// unknown.
    pub(crate) fn is_worth_another_try(&self) -> bool {
        let passes =
            |error| matches!(error, ReplicaError::HigherBallot | ReplicaError::NotAuthoritative);
        self.is_begun() || self.failures().any(passes)
    }

    /// True if a replica has refused because it has promised a higher ballot.
    pub(crate) fn is_outbid(&self) -> bool {
        self.failures().any(|error| error == ReplicaError::HigherBallot)
    }

    /// Returns the outcome at each replica, for the client. `is_over`: the deadline is over, so a
    /// replica that has not replied counts as silent, unless the write is still queued and has
    /// asked none.
    pub(crate) fn parts(&self, is_over: bool) -> Vec<(NodeId, ReplicaOutcome)> {
        let has_waited = is_over && !matches!(self.stage, ChangeStage::Queued);
        let outstanding = if has_waited { ReplicaOutcome::Silent } else { ReplicaOutcome::Pending };
        // For a read, a promise with the newest record is the replica's whole part.
        let promised = if self.is_read() { ReplicaOutcome::Done } else { ReplicaOutcome::Promised };
        let part = |vote: &ChangeVote| match vote.state {
            ChangeState::Asked(_) | ChangeState::Fetching(_) | ChangeState::Recalling(_) => {
                outstanding
            }
            ChangeState::Promised | ChangeState::ReceiverPromised => promised,
            ChangeState::Stored => ReplicaOutcome::Done,
            ChangeState::Failed(error) => error.part(),
        };
        self.votes.iter().map(|vote| (vote.node, part(vote))).collect()
    }
}
