//! Requested compactions of the whole store. The compaction thread alternates them with regular
//! compactions, so writes wait for one step at most. After each step the thread rests as long as
//! the step took, unless a regular compaction is due.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Shared;
use crate::engine::{FullCompaction, StepOutcome};
use crate::error::Error;
use crate::requested_compactions::Moment;

/// The current moment; the steady time counts from `opened`.
pub(super) fn now(opened: Instant) -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Moment { wall, steady: opened.elapsed() }
}

impl Shared {
    /// Executes a step of the requested compaction; returns false if no compaction is requested.
    /// `run`: the progress of that compaction, kept by the compaction thread; `None` before its
    /// first step.
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
