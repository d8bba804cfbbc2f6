//! The state of an unfinished read, with each replica's part in it.

use crate::dispatch::core::Cx;
use crate::event::{Answer, ClientId, Effect, FailureKind, OpId, ReplicaOutcome};
use crate::message::{NodeId, Reply};
use crate::request::outstanding::{Outstanding, ReplicaError, VoteIndex, failure};
use crate::request::reported::ReportedRecord;
use crate::request::sets::{self, PerSet};
use record::Record;

/// The client or node that a read answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadRequester {
    Client(ClientId),
    /// Another node, on behalf of its client.
    Peer {
        /// The request of the node.
        op: OpId,
        /// The longest record, in bytes, that the node has memory for.
        most: u32,
    },
}

impl ReadRequester {
    /// Answers the client or the node that made the read.
    pub(crate) fn answer(self, cx: &mut Cx<'_>, answer: Answer) {
        let (op, most) = match self {
            Self::Client(client) => return cx.out.push(Effect::Answer { client, answer }),
            Self::Peer { op, most } => (op, most),
        };
        let authoritative = true;
        let reply = match answer {
            Answer::Found(Some(record)) if record.byte_len() > most as usize => {
                Reply::Long { outline: record.outline(), authoritative }
            }
            Answer::Found(Some(record)) => Reply::Found { record, authoritative },
            Answer::Found(None) => Reply::Absent { authoritative },
            _ => Reply::Busy,
        };
        cx.reply_unchecked(op, reply);
    }
}

/// An unfinished read, and its votes.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) reader: ReadRequester,
    pub(crate) stage: ReadStage,
    /// The number of times that a higher ballot has blocked the read's repair.
    pub(crate) outbid: u32,
    /// The vote of each replica, in the order of asking.
    pub(crate) votes: Vec<ReadVote>,
}

/// A stage of a read.
#[derive(Debug)]
pub(crate) enum ReadStage {
    /// Replicas are being asked for their records.
    Asking {
        /// The number of times that replicas were asked again because they were not authoritative.
        retry_count: u32,
        /// True if these replicas are about to be asked once more.
        is_retry_due: bool,
    },
    /// The answer is fixed, regardless of later reports, and enough replicas are being asked to
    /// store it.
    Decided(Option<Record>),
    /// The client was answered. This record, the newest so far, is sent to replicas that report an
    /// older record.
    Answered(Option<Record>),
}

/// A replica's part in a read.
#[derive(Debug, Clone)]
pub(crate) struct ReadVote {
    pub(crate) node: NodeId,
    /// The replica's positions in the two sets, from 0.
    pub(crate) place: PerSet,
    pub(crate) state: ReadState,
    /// The record that the replica reported; `None` = no record, or no report yet.
    pub(crate) reported: Option<ReportedRecord>,
    /// True if this read has sent the replica a read request.
    pub(crate) was_asked: bool,
}

/// The state of a replica in a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// The replica was not asked yet.
    Idle,
    /// The replica was asked for its record.
    Asked(Outstanding),
    /// The replica reported its record or the lack of one ([`ReadVote::reported`]).
    Reported {
        /// True if the replica is authoritative for its report.
        authoritative: bool,
    },
    /// The replica reported a long record, and was asked to send it.
    Fetching {
        /// True if the replica is authoritative for its report.
        authoritative: bool,
        outstanding: Outstanding,
    },
    /// The replica was asked to store the newest record.
    Repairing(Outstanding),
    /// The replica stored the newest record.
    Holds,
    /// The replica did not do its part.
    Failed(ReplicaError),
}

impl ReadState {
    pub(crate) fn outstanding_mut(&mut self) -> Option<&mut Outstanding> {
        match self {
            Self::Asked(outstanding)
            | Self::Fetching { outstanding, .. }
            | Self::Repairing(outstanding) => Some(outstanding),
            Self::Idle | Self::Reported { .. } | Self::Holds | Self::Failed(_) => None,
        }
    }

    pub(crate) fn outstanding(mut self) -> Option<Outstanding> {
        self.outstanding_mut().copied()
    }

    pub(crate) fn is_asked(self) -> bool {
        matches!(self, Self::Asked(_))
    }

    pub(crate) fn is_fetching(self) -> bool {
        matches!(self, Self::Fetching { .. })
    }

    pub(crate) fn is_repairing(self) -> bool {
        matches!(self, Self::Repairing(_))
    }

    /// True if the replica made a report for which it is authoritative.
    pub(crate) fn is_authoritative(self) -> bool {
        matches!(
            self,
            Self::Reported { authoritative: true } | Self::Fetching { authoritative: true, .. }
        )
    }
}

impl ReadVote {
    pub(crate) fn new(node: NodeId, place: PerSet) -> Self {
        Self { node, place, state: ReadState::Idle, reported: None, was_asked: false }
    }

    /// True if the replica is known to hold this record, or a newer record that covers it. A
    /// replica that is being rebuilt received its records from other nodes, so a copy of a
    /// conditional write's record does not prove that the replica accepted the record.
    pub(crate) fn holds(&self, record: &Record) -> bool {
        let covers = |reported: &ReportedRecord| reported.rank().covers(&record.rank());
        let counts = record.ballot() == 0 || self.state.is_authoritative();
        self.state == ReadState::Holds || counts && self.reported.as_ref().is_some_and(covers)
    }
}

impl Read {
    pub(crate) fn is_decided(&self) -> bool {
        !matches!(self.stage, ReadStage::Asking { .. })
    }

    /// Returns the fixed answer, or a newer record that was reported after it; `None` = the answer
    /// is not fixed, or no replica reported a record.
    pub(crate) fn newest(&self) -> Option<&Record> {
        match &self.stage {
            ReadStage::Asking { .. } => None,
            ReadStage::Decided(newest) | ReadStage::Answered(newest) => newest.as_ref(),
        }
    }

    /// True if every report agrees with the answer.
    pub(crate) fn is_unanimous(&self) -> bool {
        let answer = self.newest().map(Record::rank);
        self.votes.iter().all(|vote| match (&vote.reported, vote.state) {
            (None, ReadState::Reported { .. }) => answer.is_none(),
            (None, _) => true,
            (Some(reported), _) => Some(reported.rank()) == answer,
        })
    }

    /// Counts the wanted votes in each set.
    pub(crate) fn count(&self, wanted: impl Fn(&ReadVote) -> bool) -> PerSet {
        sets::count(self.votes.iter().filter(|vote| wanted(vote)).map(|vote| vote.place))
    }

    /// Counts the wanted votes in the read set only: its reports decide the answer.
    pub(crate) fn count_read(&self, wanted: impl Fn(&ReadVote) -> bool) -> usize {
        self.votes.iter().filter(|vote| vote.place.is_in_read() && wanted(vote)).count()
    }

    /// Counts the votes in the wanted states, in either set.
    pub(crate) fn count_states(&self, wanted: impl Fn(ReadState) -> bool) -> usize {
        self.votes.iter().filter(|vote| wanted(vote.state)).count()
    }

    pub(crate) fn first(&self, wanted: impl Fn(&ReadVote) -> bool) -> Option<VoteIndex> {
        self.votes.iter().position(wanted).map(VoteIndex)
    }

    /// Returns the next vote of the read set whose replica was not asked yet.
    pub(crate) fn first_idle(&self) -> Option<VoteIndex> {
        self.first(|vote| vote.state == ReadState::Idle && vote.place.is_in_read())
    }

    pub(crate) fn is_awaiting(&self) -> bool {
        self.votes.iter().any(|vote| vote.state.outstanding().is_some())
    }

    /// Returns the vote of a node that has not replied yet; `None` = the node's message is stale.
    pub(crate) fn awaited_vote(&self, node: NodeId) -> Option<VoteIndex> {
        self.first(|vote| vote.node == node && vote.state.outstanding().is_some())
    }

    /// Marks the replicas that have not replied as silent: the deadline is over.
    pub(crate) fn mark_silent(&mut self) {
        for vote in self.votes.iter_mut().filter(|vote| vote.state.outstanding().is_some()) {
            vote.state = ReadState::Failed(ReplicaError::Silent);
        }
    }

    /// Counts the replicas that did their part: before the answer is fixed, those that are
    /// authoritative for their reports; afterwards, those that hold the answer.
    pub(crate) fn count_acks(&self) -> PerSet {
        match self.newest() {
            Some(newest) => self.count(|vote| vote.holds(newest)),
            None => self.count(|vote| vote.state.is_authoritative()),
        }
    }

    pub(crate) fn failure(&self) -> FailureKind {
        let failed = self.votes.iter().filter_map(|vote| match vote.state {
            ReadState::Failed(error) => Some(error),
            _ => None,
        });
        // If at least one replica was busy and every other failed one was silent, the read failed
        // because of overload. The read changed nothing, so the client may retry it.
        let only_busy = !self.is_decided()
            && failed.clone().any(|error| error == ReplicaError::Busy)
            && failed.clone().all(|e| matches!(e, ReplicaError::Busy | ReplicaError::Silent));
        if only_busy {
            return FailureKind::Busy;
        }
        let did = |state: ReadState| state.is_authoritative() || state == ReadState::Holds;
        if self.count_states(did) > 0 { FailureKind::TooFew } else { failure(failed) }
    }

    /// Returns the part of each replica.
    pub(crate) fn parts(&self) -> Vec<(NodeId, ReplicaOutcome)> {
        let part = |vote: &ReadVote| match vote.state {
            ReadState::Idle => ReplicaOutcome::Unasked,
            ReadState::Asked(_) | ReadState::Fetching { .. } | ReadState::Repairing(_) => {
                ReplicaOutcome::Pending
            }
            ReadState::Reported { authoritative: true } | ReadState::Holds => ReplicaOutcome::Done,
            ReadState::Reported { authoritative: false } => ReplicaOutcome::NotAuthoritative,
            ReadState::Failed(error) => error.part(),
        };
        self.votes.iter().map(|vote| (vote.node, part(vote))).collect()
    }
}
