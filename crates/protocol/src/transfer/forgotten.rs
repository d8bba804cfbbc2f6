//! Completeness of a node's memory of writes with an idempotency key. A client may repeat such a
//! write for a day ([`IDEMPOTENCY_RETENTION_MICROS`]).
//!
//! The memory is incomplete if the node lost it with its disk and the other replicas did not report
//! all of theirs, or if keys moved to the node and their previous replicas did not report all of
//! theirs. For a day after that, the node does not answer "never" for writes that it may have
//! forgotten.

use crate::clock::Clock;
use crate::paxos::operation::IDEMPOTENCY_RETENTION_MICROS;
use crate::shared::Shared;

/// A node's possible loss of memory of idempotent writes ([`Shared::forgotten_idempotency`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenIdempotency {
    /// The end of the condition, in microseconds since 1970: later, the forgotten writes need not
    /// be known.
    pub until_micros: u64,
    /// The reason for the loss.
    pub why: ForgettingReason,
}

/// The reason why a node may have forgotten writes with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgettingReason {
    /// The node lost its memory of such writes with its disk, and the other replicas have not
    /// reported all they remember.
    LostDisk,
    /// Keys moved to the node, and their previous replicas have not reported all they remember.
    Moved,
}

impl Shared {
    /// True if this node remembers every write with an idempotency key that may be sent again: it
    /// lost no such memory with a disk, and its sources reported all of theirs.
    pub fn remembers_all(&self) -> bool {
        self.membership.state.knows_what_it_lost() && self.forgotten_idempotency().is_none()
    }

    /// Returns the version time up to which this node may have forgotten, for some keys, which
    /// writes with an idempotency key were done; 0 = none.
    pub fn idempotency_forgotten_before(&self) -> u64 {
        self.membership
            .state
            .idempotency_lost_before()
            .max(self.membership.layouts.forgotten_before(None))
    }

    /// Returns why, and until when, this node cannot answer "never" for some idempotency keys;
    /// `None` = it can answer for all.
    pub fn forgotten_idempotency(&self) -> Option<ForgottenIdempotency> {
        let (lost, time) =
            (self.membership.state.idempotency_lost_before(), self.idempotency_forgotten_before());
        let until_micros = Clock::micros(time) + IDEMPOTENCY_RETENTION_MICROS;
        // `last()` is the latest of this node's clock and all version times that it has received.
        let is_over = time == 0 || until_micros <= Clock::micros(self.clock.last());
        let why = if lost > 0 { ForgettingReason::LostDisk } else { ForgettingReason::Moved };
        (!is_over).then_some(ForgottenIdempotency { until_micros, why })
    }
}
