//! One replica's part in a request: what it was asked, and why it did not do its part.

use crate::event::{FailureKind, Part};
use crate::message::{Refused, Reply};

/// Why a replica did not do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaError {
    /// Refused, nothing was changed.
    Busy,
    /// Refused, nothing was changed.
    NoSpace,
    /// Its store refused, nothing was changed.
    Refused,
    /// Refused, nothing was changed: the timestamp is too far ahead of its clock, or it works by
    /// another layout.
    Declined,
    /// Refused, nothing was changed: it has promised a higher ballot, or just stores another
    /// record.
    Outbid,
    /// It can't promise anything: it is new, or being rebuilt.
    NotAuthoritative,
    /// It stored the record, but holds a future record, which hides this one from every read.
    Hidden,
    /// Its store failed; a write may have been done.
    Failed,
    /// No answer; a write may have been done.
    Silent,
    /// Nothing was sent.
    Unreached,
}

impl ReplicaError {
    /// Why a node did not do what it was asked, by its reply.
    pub(crate) fn of_refusal(reply: &Reply) -> Self {
        match reply.refusal() {
            Some(Refused::Busy) => Self::Busy,
            Some(Refused::NoSpace) => Self::NoSpace,
            Some(Refused::Declined) => Self::Declined,
            Some(Refused::Outbid) => Self::Outbid,
            // A reply that does not fit the request comes from a faulty peer.
            None => Self::Failed,
        }
    }

    /// How the client sees it.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Busy | Self::Outbid => Part::Busy,
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

/// Why the request failed if no replica did its part, by the errors so far.
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

/// A vote, by its place in its request's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoteAt(pub(crate) usize);

/// Something that a node was asked and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errand {
    /// When it was asked.
    pub(crate) since: u64,
    pub(crate) way: Way,
}

/// How far an errand is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It waits for a connection: nobody has seen it.
    Waits,
    /// The connection stood, or stands by now: it may have arrived.
    Sent,
    /// The connection was lost, and it was sent once more: it may have arrived twice.
    Resent,
}

impl Errand {
    /// Whether the node may have received it.
    pub(crate) fn may_have_arrived(self) -> bool {
        self.way != Way::Waits
    }

    /// The connection stands.
    pub(crate) fn goes_out(&mut self) {
        if self.way == Way::Waits {
            self.way = Way::Sent;
        }
    }
}
