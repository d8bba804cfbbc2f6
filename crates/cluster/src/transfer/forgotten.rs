//! Whether a node knows of every write with an idempotency key that may be sent again.
//!
//! ```text
//!  its disk was lost ─▶ the others did not tell all ──────┐
//!  keys moved to it ──▶ their replicas did not tell all ──┴─▶ for a day it says "never" of none
//! ```

use crate::clock::Clock;
use crate::paxos::operation::REMEMBERED_MICROS;
use crate::shared::Shared;

/// A node may have forgotten writes with an idempotency key ([`Shared::forgotten_words`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForgottenWords {
    /// Until then, in microseconds since 1970: what it may have forgotten need not be known later.
    pub until_micros: u64,
    /// Why that is so.
    pub why: ForgottenWhy,
}

/// Why a node may have forgotten writes with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgottenWhy {
    /// It lost them with its disk, and the others have not told all that they remember.
    LostDisk,
    /// Keys moved to it, and not all was told that their replicas of before remember.
    Moved,
}

impl Shared {
    /// Whether this node has forgotten no write with an idempotency key that may be sent again:
    /// with a disk, or because it could not be told of it.
    pub fn remembers_all(&self) -> bool {
        self.membership.state.knows_what_it_lost() && self.forgotten_words().is_none()
    }

    /// The greatest time of a version up to which this node may have forgotten, of some keys, which
    /// writes with an idempotency key were done; 0 = it has forgotten none.
    pub fn forgot_words_before(&self) -> u64 {
        self.membership.state.words_lost_before().max(self.membership.layouts.has_forgotten(None))
    }

    /// Why this node can't say of some words that no write was done with them, and until when.
    pub fn forgotten_words(&self) -> Option<ForgottenWords> {
        let (lost, time) = (self.membership.state.words_lost_before(), self.forgot_words_before());
        let until_micros = Clock::micros(time) + REMEMBERED_MICROS;
        // As late as any time that it has received.
        let is_over = time == 0 || until_micros <= Clock::micros(self.clock.last());
        let why = if lost > 0 { ForgottenWhy::LostDisk } else { ForgottenWhy::Moved };
        (!is_over).then_some(ForgottenWords { until_micros, why })
    }
}
