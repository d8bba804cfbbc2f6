//! How a run is watched and ended from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::tally::Tally;

/// One second of a run, over all threads.
#[derive(Debug)]
pub struct Interval {
    /// Seconds from the end of the warm-up to its beginning.
    pub start_s: u64,
    /// How long it was: 1, but for the last.
    pub length_s: f64,
    /// Requests due but not yet sent at its end.
    pub backlog: u64,
    /// What was counted in it. Answers count when they come, whenever their request was due.
    pub tally: Tally,
}

/// Called once a second, and for what is left at the end, from a thread of its own with the lowest
/// priority. While it takes its time the load goes on.
pub type Watch<'a> = Box<dyn FnMut(&Interval) + Send + 'a>;

/// Called when all are connected and the first request is about to be sent.
type Begun<'a> = Box<dyn FnOnce() + Send + 'a>;

/// How a run is watched and ended from outside.
#[derive(Default)]
pub struct Control<'a> {
    stop: Arc<AtomicBool>,
    begun: Mutex<Option<Begun<'a>>>,
    watch: Mutex<Option<Watch<'a>>>,
}

impl<'a> Control<'a> {
    /// One that only ends runs, when `stop` becomes true. A signal handler can set it.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, begun: Mutex::new(None), watch: Mutex::new(None) }
    }

    /// Calls `begun` when sending begins.
    pub fn on_begin(self, begun: impl FnOnce() + Send + 'a) -> Self {
        Self { begun: Mutex::new(Some(Box::new(begun))), ..self }
    }

    /// Calls `watch` for each second.
    pub fn watched(self, watch: impl FnMut(&Interval) + Send + 'a) -> Self {
        Self { watch: Mutex::new(Some(Box::new(watch))), ..self }
    }

    /// Ends the run now: nothing more is sent, what waits counts as unfinished.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watch.lock().is_some()
    }

    pub(crate) fn begin(&self) {
        if let Some(begun) = self.begun.lock().take() {
            begun();
        }
    }

    pub(crate) fn dispatch(&self, interval: &Interval) {
        if let Some(watch) = self.watch.lock().as_mut() {
            watch(interval);
        }
    }
}
