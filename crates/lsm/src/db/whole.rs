//! A compaction of the whole store that somebody asked for. The compaction thread does it, in turns
//! with what is due by itself: writes are not held up by more than one step. After each it rests
//! for as long as that took, unless something is due.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard};

use super::Shared;
use crate::engine::{Whole, Work};
use crate::error::Error;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compaction {
    /// Counted from 1 since the store was opened.
    pub number: u64,
    /// When it was asked for.
    pub began: SystemTime,
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

/// Those of a store.
#[derive(Default)]
pub(super) struct Compactions(Mutex<State>);

#[derive(Default)]
struct State {
    current: Option<(Compaction, Instant)>,
    /// Whether another one follows it.
    again: bool,
    last: Option<Compaction>,
}

impl State {
    /// The number of the one under way; if there is none, one is begun.
    fn begin(&mut self, bytes: u64) -> u64 {
        let number = self.last.as_ref().map_or(1, |last| last.number + 1);
        let (current, _) = self.current.get_or_insert_with(|| {
            let began = SystemTime::now();
            let (took, failed) = (None, None);
            let (records, of_records, bytes_before) = (0, 0, bytes);
            let asked = Compaction {
                number,
                began,
                took,
                records,
                of_records,
                bytes_before,
                bytes,
                failed,
            };
            (asked, Instant::now())
        });
        current.number
    }

    /// The one under way has ended.
    fn end(&mut self, bytes: u64) {
        self.last = self.current.take().map(|(ended, _)| ended);
        if std::mem::take(&mut self.again) {
            self.begin(bytes);
        }
    }
}

/// What the compaction thread knows of the one under way.
#[derive(Default)]
pub(super) struct Run(Option<Whole>);

impl Compactions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Asks for one; its number is that of the one under way, if there is one.
    pub(super) fn ask(&self, bytes: u64) -> u64 {
        self.state().begin(bytes)
    }

    /// Asks for one that begins after this: if one is under way, for the one after it.
    pub(super) fn ask_anew(&self, bytes: u64) -> u64 {
        let mut state = self.state();
        state.again = state.current.is_some();
        state.begin(bytes) + u64::from(state.again)
    }

    /// The one under way, and the last one that ended.
    pub(super) fn current_and_last(&self) -> (Option<Compaction>, Option<Compaction>) {
        let state = self.state();
        (state.current.as_ref().map(|(current, _)| current.clone()), state.last.clone())
    }
}

impl Shared {
    /// Does a step of the one that was asked for, if there is one; says whether there was.
    pub(super) fn compact_asked(&self, run: &mut Run) -> bool {
        if self.compactions.state().current.is_none() {
            return false;
        }
        let step = self.compact_step(run);
        let whole = run.0.clone().unwrap_or_default();
        let mut state = self.compactions.state();
        let (current, asked) = state.current.as_mut().expect("it ends here only");
        current.records = whole.done;
        current.of_records = whole.of;
        let bytes = self.engine.table_bytes();
        current.bytes = bytes;
        if !matches!(step, Ok(Work::Done)) {
            current.took = Some(asked.elapsed());
            current.of_records = whole.done;
            current.failed = step.err().map(|error| error.to_string());
            state.end(bytes);
            *run = Run::default();
        }
        true
    }

    fn compact_step(&self, run: &mut Run) -> Result<Work, Error> {
        let whole = match &mut run.0 {
            Some(whole) => whole,
            None => {
                self.engine.rotate_all();
                self.flush_all()?;
                run.0.insert(Whole::default())
            }
        };
        let times = &self.times;
        let step = || self.engine.compact_next(whole);
        let step = times.during(&times.compaction, step, |step| !matches!(step, Ok(Work::Nothing)));
        self.signals.room.notify();
        step
    }
}
