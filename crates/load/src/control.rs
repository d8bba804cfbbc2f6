//! Observation and control of a running load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::tally::Tally;

/// One second of a run, summed over all threads.
#[derive(Debug)]
pub struct Interval {
    /// Start of the interval, in seconds since the end of the warm-up.
    pub start_s: u64,
    /// Length in seconds: 1, or less in the last interval.
    pub length_s: f64,
    /// Requests due but not yet sent at the end of the interval.
    pub backlog: u64,
    /// Counts of the interval. An answer counts in the interval in which it arrives, whenever its
    /// request was due.
    pub tally: Tally,
}

/// Callback for each second and for the remainder at the end. The callback runs on a thread of its
/// own with the lowest priority, while the load continues.
pub type IntervalCallback<'a> = Box<dyn FnMut(&Interval) + Send + 'a>;

/// Callback for the moment when all connections are open and the first request is about to be sent.
type BeginCallback<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Observes and ends a run.
#[derive(Default)]
pub struct Control<'a> {
    stop: Arc<AtomicBool>,
    begun: Mutex<Option<BeginCallback<'a>>>,
    watch: Mutex<Option<IntervalCallback<'a>>>,
}

impl<'a> Control<'a> {
    /// Creates a control without callbacks. The run ends when `stop` becomes true. A signal handler
    /// can set `stop`.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, begun: Mutex::new(None), watch: Mutex::new(None) }
    }

    /// Sets the callback for the start of sending.
    pub fn on_begin(self, begun: impl FnOnce() + Send + 'a) -> Self {
        Self { begun: Mutex::new(Some(Box::new(begun))), ..self }
    }

    /// Sets the callback for each second of the run.
    pub fn on_interval(self, watch: impl FnMut(&Interval) + Send + 'a) -> Self {
        Self { watch: Mutex::new(Some(Box::new(watch))), ..self }
    }

    /// Ends the run now. No further request is sent, and requests in flight count as unfinished.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns true if the run must end.
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
