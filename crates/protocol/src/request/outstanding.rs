//! A replica's part in a request: what it was asked, and why it did not do its part.

use crate::event::{FailureKind, Part};
use crate::message::{Refused, Reply};

/// The reason why a replica did not do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaError {
    /// The replica refused, too busy; nothing was changed.
    Busy,
    /// The replica refused, its disk is full; nothing was changed.
    NoSpace,
    /// The replica's store refused; nothing was changed.
    Refused,
    /// The replica refused, and nothing was changed: the timestamp is too far ahead of its clock,
    /// or it goes by another layout.
    Declined,
    /// The replica refused, and nothing was changed: it has promised a higher ballot, or is just
    /// storing another record.
    HigherBallot,
    /// The replica can't promise anything: it is new, or being rebuilt.
    NotAuthoritative,
    /// The replica stored the record, but holds a future record, which hides this one from every
    /// read.
    Hidden,
    /// The replica's store failed; a write may have been carried out.
    Failed,
    /// The replica did not answer; a write may have been carried out.
    Silent,
    /// The replica was sent nothing.
    Unreached,
}

impl ReplicaError {
    /// Returns the reason for a refusal, by the node's reply.
    pub(crate) fn of_refusal(reply: &Reply) -> Self {
        match reply.refusal() {
            Some(Refused::Busy) => Self::Busy,
            Some(Refused::NoSpace) => Self::NoSpace,
            Some(Refused::Declined) => Self::Declined,
            Some(Refused::HigherBallot) => Self::HigherBallot,
            // A reply that does not fit the request comes from a faulty peer.
            None => Self::Failed,
        }
    }

    /// Returns the part that the client is told.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Busy | Self::HigherBallot => Part::Busy,
            Self::NotAuthoritative => Part::NotAuthoritative,
            Self::NoSpace => Part::NoSpace,
            Self::Refused | Self::Failed => Part::Failed,
            Self::Declined => Part::Declined,
            Self::Hidden => Part::Hidden,
            Self::Silent => Part::Silent,
            Self::Unreached => Part::Unreached,
        }
    }
}

/// Returns why a request failed in which no replica did its part, by the errors so far.
pub(crate) fn failure(failed: impl Iterator<Item = ReplicaError> + Clone) -> FailureKind {
    let all = |is: fn(ReplicaError) -> bool| {
        let mut failed = failed.clone().peekable();
        failed.peek().is_some() && failed.all(is)
    };
    if all(|error| error == ReplicaError::Busy) {
        FailureKind::Busy
    } else if all(|error| error == ReplicaError::NoSpace) {
        FailureKind::NoSpace
    } else if all(|error| matches!(error, ReplicaError::Failed | ReplicaError::Refused)) {
        FailureKind::Failed
    } else {
        FailureKind::TooFew
    }
}

/// The place of a vote in its request's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteAt(pub(crate) usize);

/// A request that a node was sent and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outstanding {
    /// The time when the node was asked, by the monotonic clock in microseconds.
    pub(crate) since: u64,
    pub(crate) way: Delivery,
}

/// The progress of an errand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The errand waits for a connection: no node has seen it.
    Waits,
    /// The connection stood, or stands by now: the errand may have arrived.
    Sent,
    /// The connection was lost, and the errand was sent once more: it may have arrived twice.
    Resent,
}

impl Outstanding {
    /// True if the node may have received the errand.
    pub(crate) fn may_have_arrived(self) -> bool {
        self.way != Delivery::Waits
    }

    /// Notes that the connection stands.
    pub(crate) fn mark_sent(&mut self) {
        if self.way == Delivery::Waits {
            self.way = Delivery::Sent;
        }
    }
}
