//! Completeness of a node's memory of writes with an idempotency key. A client may repeat such a
//! write for a day ([`IDEMPOTENCY_RETENTION_MICROS`]).
//!
//! The memory is incomplete in two cases: the node lost its memory with its disk, and some other
//! replica did not report its whole memory; or keys moved to the node, and some previous replica
//! did not report its whole memory. For a day afterwards, the node does not answer "never" for
//! writes that it may have forgotten.

use crate::clock::Clock;
use crate::paxos::operation::IDEMPOTENCY_RETENTION_MICROS;
use crate::shared::Shared;

/// A node's possible loss of memory of idempotent writes ([`Shared::forgotten_idempotency`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenIdempotency {
    /// The end of the incomplete time, in microseconds since 1970. Later no client repeats the
    /// forgotten writes.
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
    /// lost no such memory with a disk, and its sources reported their whole memory.
    pub fn remembers_all(&self) -> bool {
        self.membership.state.knows_what_it_lost() && self.forgotten_idempotency().is_none()
    }

    /// Returns the version time up to which this node may have forgotten writes with an idempotency
    /// key, at least for some keys; 0 = none are forgotten.
    pub fn idempotency_forgotten_before(&self) -> u64 {
        self.membership
            .state
            .idempotency_lost_before()
            .max(self.membership.layouts.recallable_from(None))
    }

    /// Returns the reason why this node cannot answer "never" for some idempotency keys, and the
    /// end of that time; `None` = it can answer for all.
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
