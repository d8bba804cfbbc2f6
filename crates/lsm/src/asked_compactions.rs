//! Compactions of the whole store that somebody asked for: one is under way, and at most one
//! follows it. Whoever drives the engine, threads or a simulation, does their steps.
//!
//! ```text
//!  ask ───────▶ current ──▶ a step … ──▶ last
//!  ask_anew ──▶ again ─────(it ends)───▶ current
//! ```

use std::mem;
use std::time::Duration;

use crate::engine::{Whole, Work};
use crate::error::Error;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// Counted from 1 since the store was opened.
    pub number: u64,
    /// When it was asked for, since 1970 by the wall clock.
    pub began: Duration,
    /// How long it took; `None` = it is under way.
    pub took: Option<Duration>,
    /// Records that were compacted …
    pub records: u64,
    /// … of about so many; a record counts once for each level that it goes down.
    pub of_records: u64,
    /// Bytes of the tables when it began …
    pub bytes_before: u64,
    /// … and now, or when it ended.
    pub bytes: u64,
    /// Why it ended before its end.
    pub failed: Option<String>,
}

impl Compaction {
    fn begin(number: u64, began: Duration, bytes: u64) -> Self {
        let (took, failed) = (None, None);
        let (records, of_records, bytes_before) = (0, 0, bytes);
        Self { number, began, took, records, of_records, bytes_before, bytes, failed }
    }
}

/// A moment, by the wall clock and by the one that nobody sets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    /// Since 1970: what people are shown.
    pub wall: Duration,
    /// Since some moment that stays the same: what durations are measured by.
    pub steady: Duration,
}

/// Those of a store.
#[derive(Debug, Default)]
pub struct Compactions {
    /// With the steady time when it was asked for.
    current: Option<(Compaction, Duration)>,
    /// Whether another one follows it.
    again: bool,
    last: Option<Compaction>,
}

impl Compactions {
    /// Asks for one; its number is that of the one under way, if there is one. `bytes`: of all
    /// tables, as in all of these.
    pub fn ask(&mut self, now: Moment, bytes: u64) -> u64 {
        let number = self.last.as_ref().map_or(1, |last| last.number + 1);
        let begin = || (Compaction::begin(number, now.wall, bytes), now.steady);
        self.current.get_or_insert_with(begin).0.number
    }

    /// Asks for one that begins after this: if one is under way, for the one after it.
    pub fn ask_anew(&mut self, now: Moment, bytes: u64) -> u64 {
        self.again = self.current.is_some();
        self.ask(now, bytes) + u64::from(self.again)
    }

    /// The one under way.
    pub fn current(&self) -> Option<&Compaction> {
        self.current.as_ref().map(|(current, _)| current)
    }

    /// The last one that ended.
    pub fn last(&self) -> Option<&Compaction> {
        self.last.as_ref()
    }

    /// Whether this one, or one after it, came to its end; `None` = neither has ended.
    pub fn has_done(&self, number: u64) -> Option<bool> {
        self.last().filter(|last| last.number >= number).map(|last| last.failed.is_none())
    }

    /// A step of the one under way was done, by which it is so far. Says whether it has ended: the
    /// next step is the first of the one after it.
    ///
    /// # Panics
    /// If none is under way.
    pub fn stepped(
        &mut self,
        step: Result<Work, Error>,
        whole: &Whole,
        now: Moment,
        bytes: u64,
    ) -> bool {
        let (mut current, since) = self.current.take().expect("it ends here only");
        (current.records, current.of_records, current.bytes) = (whole.done, whole.of, bytes);
        if matches!(step, Ok(Work::Done)) {
            self.current = Some((current, since));
            return false;
        }
        current.took = Some(now.steady.saturating_sub(since));
        current.of_records = whole.done;
        current.failed = step.err().map(|error| error.to_string());
        self.last = Some(current);
        if mem::take(&mut self.again) {
            self.ask(now, bytes);
        }
        true
    }
}
