//! Requested compactions of the whole store. The compaction thread alternates their steps with
//! regular compactions, so a regular compaction waits for one step at most. After each step the
//! thread pauses for the duration of the step, at most 5 s, unless a regular compaction is due.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Shared;
use crate::engine::{FullCompaction, StepOutcome};
use crate::error::Error;
use crate::requested_compactions::Moment;

/// The current wall-clock time, and the monotonic time since `opened`.
pub(super) fn now(opened: Instant) -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Moment { wall, steady: opened.elapsed() }
}

impl Shared {
    /// Executes a step of the requested compaction. Returns false if no compaction is requested.
    /// `run` is the progress of the requested compaction between calls; `None` before the first
    /// step.
    pub(super) fn compact_requested(&self, run: &mut Option<FullCompaction>) -> bool {
        if self.compactions.lock().current().is_none() {
            return false;
        }
        let step = self.compact_step(run);
        let full = run.clone().unwrap_or_default();
        let (now, bytes) = (now(self.opened), self.engine.table_bytes());
        if self.compactions.lock().record_step(step, &full, now, bytes) {
            *run = None;
        }
        true
    }

    fn compact_step(&self, run: &mut Option<FullCompaction>) -> Result<StepOutcome, Error> {
        let full = match run {
            Some(full) => full,
            None => {
                self.engine.rotate_all();
                self.flush_all()?;
                run.insert(FullCompaction::default())
            }
        };
        let times = &self.times;
        let step = || self.engine.compact_next(full);
        let step = times
            .measure(&times.compaction, step, |step| !matches!(step, Ok(StepOutcome::Nothing)));
        self.signals.room.notify();
        step
    }
}
