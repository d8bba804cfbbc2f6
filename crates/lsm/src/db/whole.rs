//! A compaction of the whole store that somebody asked for. The compaction thread does it, in turns
//! with what is due by itself: writes are not held up by more than one step. After each it rests
//! for as long as that took, unless something is due.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Shared;
use crate::asked_compactions::Moment;
use crate::engine::{Whole, Work};
use crate::error::Error;

/// This moment, in a store that was opened then.
pub(super) fn now(opened: Instant) -> Moment {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Moment { wall, steady: opened.elapsed() }
}

impl Shared {
    /// Does a step of the one that was asked for, if there is one; says whether there was. `run` is
    /// what the compaction thread knows of it.
    pub(super) fn compact_asked(&self, run: &mut Option<Whole>) -> bool {
        if self.compactions.lock().current().is_none() {
            return false;
        }
        let step = self.compact_step(run);
        let whole = run.clone().unwrap_or_default();
        let (now, bytes) = (now(self.opened), self.engine.table_bytes());
        if self.compactions.lock().stepped(step, &whole, now, bytes) {
            *run = None;
        }
        true
    }

    fn compact_step(&self, run: &mut Option<Whole>) -> Result<Work, Error> {
        let whole = match run {
            Some(whole) => whole,
            None => {
                self.engine.rotate_all();
                self.flush_all()?;
                run.insert(Whole::default())
            }
        };
        let times = &self.times;
        let step = || self.engine.compact_next(whole);
        let step = times.during(&times.compaction, step, |step| !matches!(step, Ok(Work::Nothing)));
        self.signals.room.notify();
        step
    }
}
