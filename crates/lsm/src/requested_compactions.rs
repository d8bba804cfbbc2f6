//! Requested compactions of the whole store: at most one is in progress, and at most one is queued
//! behind it. The driver of the engine (threads or a simulation) executes their steps.
//!
//! ```text
//!  request        starts a compaction as `current`, unless one is in progress
//!  request_anew   the same, but sets `is_next_queued` if a compaction is in progress
//!  last step      `current` becomes `last`; if `is_next_queued` is set, the next compaction starts
//! ```

use std::mem;
use std::time::Duration;

use crate::engine::{FullCompaction, StepOutcome};
use crate::error::Error;

/// A requested compaction of the whole store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// Number of the compaction, counted from 1 since the store was opened.
    pub number: u64,
    /// Time of the request, or of the start if the compaction was queued, by the wall clock, since
    /// 1970.
    pub began: Duration,
    /// Duration of the compaction; `None` = it is in progress.
    pub took: Option<Duration>,
    /// Number of records that the compaction has processed so far. A record counts once for each
    /// level that it descends.
    pub records: u64,
    /// Estimated number of records that the whole compaction processes, counted like `records`.
    pub of_records: u64,
    /// Bytes of all tables at the time `began`.
    pub bytes_before: u64,
    /// Bytes of all tables after the last step so far.
    pub bytes: u64,
    /// Error that ended the compaction early.
    pub failed: Option<String>,
}

impl Compaction {
    fn begin(number: u64, began: Duration, bytes: u64) -> Self {
        let (took, failed) = (None, None);
        let (records, of_records, bytes_before) = (0, 0, bytes);
        Self { number, began, took, records, of_records, bytes_before, bytes, failed }
    }
}

/// A moment by two clocks: the wall clock and a monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    /// Time since 1970, for display.
    pub wall: Duration,
    /// Time since a fixed moment, for measuring durations.
    pub steady: Duration,
}

/// The requested compactions of a store.
#[derive(Debug, Default)]
pub struct RequestedCompactions {
    /// The compaction in progress, with `began` by the steady clock.
    current: Option<(Compaction, Duration)>,
    /// True if another compaction is queued behind the current one.
    is_next_queued: bool,
    last: Option<Compaction>,
}

impl RequestedCompactions {
    /// Requests a compaction and returns its number; returns the number of the compaction in
    /// progress if there is one. `bytes`: current length of all tables, here and in the functions
    /// below.
    pub fn request(&mut self, now: Moment, bytes: u64) -> u64 {
        let number = self.last.as_ref().map_or(1, |last| last.number + 1);
        let begin = || (Compaction::begin(number, now.wall, bytes), now.steady);
        self.current.get_or_insert_with(begin).0.number
    }

    /// Requests a compaction that starts after this call, and returns its number. If a compaction
    /// is in progress, the requested one is queued behind it.
    pub fn request_anew(&mut self, now: Moment, bytes: u64) -> u64 {
        self.is_next_queued = self.current.is_some();
        self.request(now, bytes) + u64::from(self.is_next_queued)
    }

    /// The compaction in progress, if any.
    pub fn current(&self) -> Option<&Compaction> {
        self.current.as_ref().map(|(current, _)| current)
    }

    /// The last compaction that ended, successful or not; `None` = none has ended.
    pub fn last(&self) -> Option<&Compaction> {
        self.last.as_ref()
    }

    /// Outcome of the last completed compaction, if its number is at least `number`: true =
    /// success, false = failure. `None` = no compaction with such a number has ended.
    pub fn has_succeeded(&self, number: u64) -> Option<bool> {
        self.last().filter(|last| last.number >= number).map(|last| last.failed.is_none())
    }

    /// Records the outcome of a step of the current compaction, with its progress so far. Returns
    /// true if the compaction has ended; the next step is then the first one of the queued
    /// compaction.
    ///
    /// # Panics
    /// If no compaction is in progress.
    pub fn record_step(
        &mut self,
        step: Result<StepOutcome, Error>,
        full: &FullCompaction,
        now: Moment,
        bytes: u64,
    ) -> bool {
        let (mut current, since) = self.current.take().expect("it ends here only");
        (current.records, current.of_records, current.bytes) = (full.done, full.of, bytes);
        if matches!(step, Ok(StepOutcome::Done)) {
            self.current = Some((current, since));
            return false;
        }
        current.took = Some(now.steady.saturating_sub(since));
        current.of_records = full.done;
        current.failed = step.err().map(|error| error.to_string());
        self.last = Some(current);
        if mem::take(&mut self.is_next_queued) {
            self.request(now, bytes);
        }
        true
    }
}
