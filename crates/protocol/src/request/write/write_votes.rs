//! The state of an unfinished write, with each replica's part in it.

use crate::event::{ClientId, FailureKind, ReplicaOutcome};
use crate::message::NodeId;
use crate::request::outstanding::{Delivery, Outstanding, ReplicaError, VoteIndex, failure};
use crate::request::receipt::ReplicaSet;
use crate::request::sets::{self, PerSet};
use crate::request::slots::Work;
use record::Record;

/// An unfinished write, and its votes.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) client: ClientId,
    pub(crate) record: Record,
    pub(crate) stage: WriteStage,
    /// True if a node that received the record in an earlier attempt may hold it.
    pub(crate) may_be_held: bool,
    /// The vote of each replica.
    pub(crate) votes: Vec<WriteVote>,
}

/// A stage of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteStage {
    /// The replicas are asked to store the record under its first version.
    Asking {
        /// The latest version time among the newer records that replicas reported; `None` = no
        /// replica reported one.
        overtaken: Option<u64>,
    },
    /// The replicas are asked to store the record under a second version. Replicas that stored the
    /// first version still hold it.
    Reissued,
    /// The client was answered. Later replies decide which replicas get hints.
    Answered {
        /// True if the write had been given a second version.
        was_reissued: bool,
    },
}

/// A replica's part in a write.
#[derive(Debug, Clone)]
pub(crate) struct WriteVote {
    pub(crate) node: NodeId,
    pub(crate) place: PerSet,
    pub(crate) state: WriteState,
}

/// The state of a replica in a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteState {
    /// The replica was asked to store the record.
    Asked(Outstanding),
    /// The replica stored the record.
    Holds,
    /// The replica did not do its part.
    Failed {
        /// The reason for the replica's failure.
        error: ReplicaError,
        /// True if the write had been sent twice: a replica that refuses the second copy may have
        /// stored the first.
        was_resent: bool,
    },
}

impl WriteState {
    pub(crate) fn outstanding_mut(&mut self) -> Option<&mut Outstanding> {
        match self {
            Self::Asked(outstanding) => Some(outstanding),
            Self::Holds | Self::Failed { .. } => None,
        }
    }

    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Asked(_))
    }

    /// True if the replica holds the write or may hold it: the write was sent and not refused. A
    /// message that waits for a connection counts too, because it may still be sent after the
    /// client was answered.
    pub(crate) fn may_hold(self) -> bool {
        match self {
            Self::Asked(_) | Self::Holds | Self::Failed { was_resent: true, .. } => true,
            Self::Failed { error, .. } => {
                matches!(error, ReplicaError::Silent | ReplicaError::Failed | ReplicaError::Hidden)
            }
        }
    }

    /// True if the write has reached the replica or may have reached it, and was not refused.
    pub(crate) fn has_arrived(self) -> bool {
        match self {
            Self::Asked(outstanding) => outstanding.may_have_arrived(),
            _ => self.may_hold(),
        }
    }

    pub(crate) fn fail(&mut self, error: ReplicaError) {
        let Self::Asked(outstanding) = *self else { unreachable!("{self:?} can't fail any more") };
        *self = Self::Failed { error, was_resent: outstanding.delivery == Delivery::Resent };
    }
}

impl Write {
    /// True if the write can still get a new version.
    pub(super) fn may_reissue(&self) -> bool {
        matches!(self.stage, WriteStage::Asking { .. })
    }

    pub(crate) fn was_reissued(&self) -> bool {
        matches!(self.stage, WriteStage::Reissued | WriteStage::Answered { was_reissued: true })
    }

    pub(crate) fn mark_answered(&mut self) {
        assert!(!self.is_answered(), "a write is answered once");
        self.stage = WriteStage::Answered { was_reissued: self.was_reissued() };
    }

    pub(crate) fn count(&self, wanted: impl Fn(WriteState) -> bool) -> PerSet {
        sets::count(self.votes.iter().filter(|vote| wanted(vote.state)).map(|vote| vote.place))
    }

    pub(crate) fn count_holders(&self) -> PerSet {
        self.count(|state| state == WriteState::Holds)
    }

    /// Counts the replicas whose repair fence refuses the version of a write that can still get a
    /// new version. They would store the new version.
    pub(super) fn count_fenced(&self) -> PerSet {
        let is_fenced =
            |state| matches!(state, WriteState::Failed { error: ReplicaError::HigherBallot, .. });
        if self.may_reissue() { self.count(is_fenced) } else { PerSet::default() }
    }

    /// Counts the replicas that hold the record, and the replicas that have not replied.
    pub(crate) fn count_holders_and_open(&self) -> (PerSet, PerSet) {
        let (mut held, mut open) = (PerSet::default(), PerSet::default());
        for vote in &self.votes {
            match vote.state {
                WriteState::Holds => held = held + vote.place.sets(),
                WriteState::Asked(_) => open = open + vote.place.sets(),
                WriteState::Failed { .. } => {}
            }
        }
        (held, open)
    }

    /// True if some replica may hold the record.
    pub(crate) fn may_hold(&self) -> bool {
        let may_hold = |vote: &WriteVote| vote.state.may_hold();
        self.may_be_held || self.was_reissued() || self.votes.iter().any(may_hold)
    }

    /// Returns the replicas of the read set that hold the record.
    pub(crate) fn holders(&self) -> ReplicaSet {
        let held = self.votes.iter().filter(|vote| vote.state == WriteState::Holds);
        ReplicaSet::of(held.map(|vote| usize::from(vote.place.read)))
    }

    /// Returns the vote of a node that has not replied yet; `None` = the node's message is stale.
    pub(crate) fn awaited_vote(&self, node: NodeId) -> Option<VoteIndex> {
        let place = self.votes.iter().position(|vote| vote.node == node && vote.state.is_open());
        place.map(VoteIndex)
    }

    /// Marks the replicas that have not replied as silent: the deadline is over.
    pub(crate) fn mark_silent(&mut self) {
        for vote in self.votes.iter_mut().filter(|vote| vote.state.is_open()) {
            vote.state.fail(ReplicaError::Silent);
        }
    }

    fn failures(&self) -> impl Iterator<Item = ReplicaError> + Clone {
        self.votes.iter().filter_map(|vote| match vote.state {
            WriteState::Failed { error, .. } => Some(error),
            WriteState::Asked(_) | WriteState::Holds => None,
        })
    }

    pub(crate) fn failure(&self) -> FailureKind {
        if !self.count_holders().is_zero() { FailureKind::TooFew } else { failure(self.failures()) }
    }

    /// True if a write that can no longer succeed should still wait for its open votes. They decide
    /// whether *all* replicas were busy or full, and whether no replica received the write: in both
    /// cases the client may safely retry.
    pub(crate) fn is_worth_waiting(&self) -> bool {
        let none = !self.was_reissued()
            && !self.may_be_held
            && self.count(WriteState::has_arrived).is_zero();
        let is_open = !self.count(WriteState::is_open).is_zero();
        is_open && (none || self.failure() != FailureKind::TooFew)
    }

    /// Returns the part of each replica.
    pub(crate) fn parts(&self) -> Vec<(NodeId, ReplicaOutcome)> {
        let part = |vote: &WriteVote| match vote.state {
            WriteState::Asked(_) => ReplicaOutcome::Pending,
            WriteState::Holds => ReplicaOutcome::Done,
            WriteState::Failed { error, .. } => error.part(),
        };
        self.votes.iter().map(|vote| (vote.node, part(vote))).collect()
    }
}
