//! What is known of a read under way, and of each replica's part in it.

use crate::event::{Answer, ClientId, Effect, FailureKind, OpId, Part};
use crate::message::{NodeId, Reply};
use crate::protocol::core::Cx;
use crate::request::part::{Errand, ReplicaError, VoteAt, failure};
use crate::request::reported::ReportedRecord;
use crate::request::sets::{self, PerSet};
use record::Record;

/// Who wants to know the value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reader {
    Client(ClientId),
    /// Another node reads on behalf of its client.
    Peer {
        /// The request that it sent.
        op: OpId,
        /// Bytes of a record that it has room for.
        most: u32,
    },
}

impl Reader {
    /// Answers the client or node that asked for a value.
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
        cx.respond(op, reply);
    }
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) reader: Reader,
    pub(crate) stage: ReadStage,
    /// How often it was outbid.
    pub(crate) outbid: u32,
    /// One for each replica, in the order in which they are asked.
    pub(crate) votes: Vec<ReadVote>,
}

/// How far a read is.
#[derive(Debug)]
pub(crate) enum ReadStage {
    /// Replicas are being asked what they hold.
    Asking {
        /// How often replicas that were not authoritative were asked again.
        asked_again: u32,
        /// Whether that is about to happen once more.
        asks_again: bool,
    },
    /// This is the answer, whatever is reported later; it is being written to enough replicas.
    Decided(Option<Record>),
    /// The client was answered. Replicas that report something older are repaired with this, the
    /// newest record so far.
    Answered(Option<Record>),
}

/// One replica's part in a read.
#[derive(Debug, Clone)]
pub(crate) struct ReadVote {
    pub(crate) node: NodeId,
    /// Its place among the key's replicas, from 0.
    pub(crate) place: PerSet,
    pub(crate) state: ReadState,
    /// What it holds, as far as it reported that.
    pub(crate) reported: Option<ReportedRecord>,
    /// Whether this read has sent the replica a read request.
    pub(crate) was_asked: bool,
}

/// What a replica does in a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// It was not asked yet.
    Idle,
    /// It was asked what it holds.
    Asked(Errand),
    /// It reported that; see [`ReadVote::reported`].
    Reported {
        /// Whether it is authoritative for that.
        authoritative: bool,
    },
    /// It reported a long record, and was asked to send it.
    Fetching {
        /// Whether it is authoritative for what it reported.
        authoritative: bool,
        errand: Errand,
    },
    /// It was asked to store the newest record.
    Repairing(Errand),
    /// It stored the newest record.
    Holds,
    /// It did not do its part.
    Failed(ReplicaError),
}

impl ReadState {
    pub(crate) fn errand_mut(&mut self) -> Option<&mut Errand> {
        match self {
            Self::Asked(errand) | Self::Fetching { errand, .. } | Self::Repairing(errand) => {
                Some(errand)
            }
            Self::Idle | Self::Reported { .. } | Self::Holds | Self::Failed(_) => None,
        }
    }

    pub(crate) fn errand(mut self) -> Option<Errand> {
        self.errand_mut().copied()
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

    /// Whether the replica reported what it holds, and is authoritative for it.
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

    /// Whether the replica is known to hold a record, or a newer one that covers it. One that is
    /// being rebuilt was sent its records by others: that it has one of a conditional write does
    /// not show that it stored it.
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

    /// The answer, once it is decided, or what is newer than that by now.
    pub(crate) fn newest(&self) -> Option<&Record> {
        match &self.stage {
            ReadStage::Asking { .. } => None,
            ReadStage::Decided(newest) | ReadStage::Answered(newest) => newest.as_ref(),
        }
    }

    /// Whether all that was reported is the answer: no replica that replied lacks it.
    pub(crate) fn is_unanimous(&self) -> bool {
        let answer = self.newest().map(Record::rank);
        self.votes.iter().all(|vote| match (&vote.reported, vote.state) {
            (None, ReadState::Reported { .. }) => answer.is_none(),
            (None, _) => true,
            (Some(reported), _) => Some(reported.rank()) == answer,
        })
    }

    /// How many there are in each set.
    pub(crate) fn count(&self, wanted: impl Fn(&ReadVote) -> bool) -> PerSet {
        sets::count(self.votes.iter().filter(|vote| wanted(vote)).map(|vote| vote.place))
    }

    /// How many there are in the set that is read: what these report is what counts.
    pub(crate) fn count_read(&self, wanted: impl Fn(&ReadVote) -> bool) -> usize {
        self.votes.iter().filter(|vote| vote.place.is_read() && wanted(vote)).count()
    }

    /// How many votes there are, of whichever set.
    pub(crate) fn count_states(&self, wanted: impl Fn(ReadState) -> bool) -> usize {
        self.votes.iter().filter(|vote| wanted(vote.state)).count()
    }

    pub(crate) fn first(&self, wanted: impl Fn(&ReadVote) -> bool) -> Option<VoteAt> {
        self.votes.iter().position(wanted).map(VoteAt)
    }

    /// The next one of the set that is read that was not asked yet.
    pub(crate) fn first_idle(&self) -> Option<VoteAt> {
        self.first(|vote| vote.state == ReadState::Idle && vote.place.is_read())
    }

    pub(crate) fn is_awaiting(&self) -> bool {
        self.votes.iter().any(|vote| vote.state.errand().is_some())
    }

    /// The vote of a node that has yet to reply; `None` = what it says is stale.
    pub(crate) fn awaited(&self, node: NodeId) -> Option<VoteAt> {
        self.first(|vote| vote.node == node && vote.state.errand().is_some())
    }

    /// The deadline is over for replicas that have not replied.
    pub(crate) fn fall_silent(&mut self) {
        for vote in self.votes.iter_mut().filter(|vote| vote.state.errand().is_some()) {
            vote.state = ReadState::Failed(ReplicaError::Silent);
        }
    }

    /// How many replicas did their part: are authoritative for what they reported, or hold the
    /// answer.
    pub(crate) fn acked(&self) -> PerSet {
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
        // A read for which some replicas had no room and others no time failed by overload: it
        // changed nothing and may be tried again, whatever the others reported.
        let only_busy = !self.is_decided()
            && failed.clone().any(|error| error == ReplicaError::Busy)
            && failed.clone().all(|e| matches!(e, ReplicaError::Busy | ReplicaError::Silent));
        if only_busy {
            return FailureKind::Busy;
        }
        let did = |state: ReadState| state.is_authoritative() || state == ReadState::Holds;
        if self.count_states(did) > 0 { FailureKind::TooFew } else { failure(failed) }
    }

    /// What each replica did.
    pub(crate) fn parts(&self) -> Vec<(NodeId, Part)> {
        let part = |vote: &ReadVote| match vote.state {
            ReadState::Idle => Part::Unasked,
            ReadState::Asked(_) | ReadState::Fetching { .. } | ReadState::Repairing(_) => {
                Part::Open
            }
            ReadState::Reported { authoritative: true } | ReadState::Holds => Part::Done,
            ReadState::Reported { authoritative: false } => Part::NotAuthoritative,
            ReadState::Failed(error) => error.part(),
        };
        self.votes.iter().map(|vote| (vote.node, part(vote))).collect()
    }
}
