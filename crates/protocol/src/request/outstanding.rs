//! A replica's part in a request: the outstanding request, or the reason why the replica failed.

use crate::event::{FailureKind, ReplicaOutcome};
use crate::message::{RefusalReason, Reply};

/// The reason why a replica did not do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaError {
    /// The replica is overloaded and refused; nothing was changed.
    Busy,
    /// The replica's disk is full, and the replica refused; nothing was changed.
    NoSpace,
    /// The replica's store refused; nothing was changed.
    Refused,
    /// The replica refused, and nothing was changed: the write's timestamp is too far ahead of the
    /// replica's clock, or the replica's layout differs.
    Declined,
    /// The replica refused, and nothing was changed: the replica has promised a higher ballot, or
    /// is storing another record at this moment.
    HigherBallot,
    /// The replica can't promise anything, because it is new or being rebuilt.
    NotAuthoritative,
    /// The replica stored the record, but also holds a future record, which hides this one from
    /// every read.
    Hidden,
    /// The replica's store failed on this request, or the reply does not match the request; a write
    /// may have been carried out.
    Failed,
    /// The replica did not answer; a write may have been carried out.
    Silent,
    /// No message reached the replica.
    Unreached,
}

impl ReplicaError {
    /// Returns the error for a reply that refuses the request or does not match it.
    pub(crate) fn of_refusal(reply: &Reply) -> Self {
        match reply.refusal() {
            Some(RefusalReason::Busy) => Self::Busy,
            Some(RefusalReason::NoSpace) => Self::NoSpace,
            Some(RefusalReason::Declined) => Self::Declined,
            Some(RefusalReason::HigherBallot) => Self::HigherBallot,
            // Only a faulty peer sends a reply that does not match the request.
            None => Self::Failed,
        }
    }

    /// Returns the outcome that the client is told.
    pub(crate) fn part(self) -> ReplicaOutcome {
        match self {
            Self::Busy | Self::HigherBallot => ReplicaOutcome::Busy,
            Self::NotAuthoritative => ReplicaOutcome::NotAuthoritative,
            Self::NoSpace => ReplicaOutcome::NoSpace,
            Self::Refused | Self::Failed => ReplicaOutcome::Failed,
            Self::Declined => ReplicaOutcome::Declined,
            Self::Hidden => ReplicaOutcome::Hidden,
            Self::Silent => ReplicaOutcome::Silent,
            Self::Unreached => ReplicaOutcome::Unreached,
        }
    }
}

/// Returns the kind of failure of a request, from its replicas' errors: `Busy`, `NoSpace` or
/// `Failed` if there are errors and all are of that kind, otherwise `TooFew`.
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

/// The index of a vote in its request's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteIndex(pub(crate) usize);

/// A request that was sent to a node and not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outstanding {
    /// The time when the node was asked, by the monotonic clock in microseconds.
    pub(crate) since: u64,
    pub(crate) delivery: Delivery,
}

/// The progress of an outstanding request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The request waits for a connection: the node has not received it.
    Waits,
    /// A connection has been up since the request was queued: the request may have arrived.
    Sent,
    /// The connection was lost, or the node refused the request under another view, and the request
    /// was sent once more: it may have arrived twice.
    Resent,
}

impl Outstanding {
    /// True if the node may have received the request.
    pub(crate) fn may_have_arrived(self) -> bool {
        self.delivery != Delivery::Waits
    }

    /// Notes that a connection is up.
    pub(crate) fn mark_sent(&mut self) {
        if self.delivery == Delivery::Waits {
            self.delivery = Delivery::Sent;
        }
    }
}
