//! Congestion control for long writes: limits the bytes of unfinished long writes to the number
//! that the replicas finish in good time.
//!
//! ```text
//!   a write took long    the window shrinks by a quarter
//!   a write was quick    the window grows a bit, up to the memory budget for bodies
//!
//!   enter ─▶ the write waits, nothing is sent yet ─▶ the write is sent ─▶ leave
//! ```
//!
//! Data sent to replicas that are behind would only wait there until the write's deadline passes,
//! and then the write's outcome is unknown. A write therefore waits here, where a refusal means
//! that nothing was done. The rule is that of TCP's congestion window: additive increase,
//! multiplicative decrease.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes per permit.
const UNIT: usize = 1 << 10;

/// A write that takes longer than 1/`GOOD_TIME_SHARE` of the deadline shows that too many bytes are
/// under way, since the data sent last takes as long as all before it.
const GOOD_TIME_SHARE: u32 = 2;

/// One loop's congestion window and its admission permits.
#[derive(Debug)]
pub(crate) struct WriteWindow {
    free: Semaphore,
    /// Window size in permits; `window` + `debt` permits are in circulation.
    window: Cell<usize>,
    /// Permits to withdraw from circulation when writes return them.
    debt: Cell<usize>,
    /// Lower and upper limit of the window. One write of any length always fits.
    range: (usize, usize),
    good_time: Duration,
    /// Time at which the window last shrank. It shrinks once for all writes that were under way
    /// then.
    narrowed: Cell<Option<Instant>>,
}

/// The admission permit of a write that is under way.
#[derive(Debug)]
pub(crate) struct WritePermit<'a> {
    gate: &'a WriteWindow,
    permit: Option<SemaphorePermit<'a>>,
    since: Instant,
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).max(1)
}

impl WriteWindow {
    /// Creates a window for writes of at most `longest` bytes each, and `most` bytes in all.
    pub(crate) fn new(longest: usize, most: usize, deadline: Duration) -> Self {
        let least = units(longest);
        let most = units(most).max(least);
        Self {
            free: Semaphore::new(most),
            window: Cell::new(most),
            debt: Cell::new(0),
            range: (least, most),
            good_time: deadline / GOOD_TIME_SHARE,
            narrowed: Cell::new(None),
        }
    }

    /// Admits a write of `bytes` bytes, in the order of arrival; `None` if that takes longer than
    /// `patience`.
    pub(crate) async fn enter(&self, bytes: usize, patience: Duration) -> Option<WritePermit<'_>> {
        let wanted = units(bytes).min(self.range.0) as u32;
        let permit = match self.free.try_acquire_many(wanted) {
            Ok(permit) => permit,
            Err(_) => {
                let waiting = self.free.acquire_many(wanted);
                tokio::time::timeout(patience, waiting).await.ok()?.ok()?
            }
        };
        Some(WritePermit { gate: self, permit: Some(permit), since: Instant::now() })
    }

    fn record_duration(&self, units: usize, took: Duration) {
        let (least, most) = self.range;
        let (window, now) = (self.window.get(), Instant::now());
        if took <= self.good_time {
            let wider = (window + (units * units / window).max(1)).min(most);
            let more = wider - window;
            // Growth first cancels debt.
            let forgiven = more.min(self.debt.get());
            self.debt.set(self.debt.get() - forgiven);
            self.free.add_permits(more - forgiven);
            self.window.set(wider);
            return;
        }
        let lately = |at: Instant| now.duration_since(at) < self.good_time;
        if !self.narrowed.get().is_some_and(lately) {
            let narrower = (window - window / 4).max(least);
            self.debt.set(self.debt.get() + window - narrower);
            self.window.set(narrower);
            self.narrowed.set(Some(now));
        }
    }
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        let Some(mut permit) = self.permit.take() else { return };
        let units = permit.num_permits();
        self.gate.record_duration(units, self.since.elapsed());
        let owed = self.gate.debt.get().min(units);
        if let Some(taken) = permit.split(owed) {
            taken.forget();
            self.gate.debt.set(self.gate.debt.get() - owed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(400);

    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn writes_wait_until_others_are_done() {
        run(async {
            let gate = WriteWindow::new(10 * UNIT, 30 * UNIT, DEADLINE);
            let short = Duration::from_millis(1);
            let mut passes = Vec::new();
            for _ in 0..3 {
                passes.push(gate.enter(10 * UNIT, short).await.unwrap());
            }
            assert!(gate.enter(1, short).await.is_none());
            let waiting = gate.enter(10 * UNIT, Duration::MAX);
            let leaving = async { drop(passes.pop()) };
            assert!(tokio::join!(waiting, leaving).0.is_some());
        });
    }

    #[test]
    fn the_window_follows_how_long_writes_take() {
        let gate = WriteWindow::new(10 * UNIT, 100 * UNIT, DEADLINE);
        gate.record_duration(10, DEADLINE);
        gate.record_duration(10, DEADLINE);
        assert_eq!(gate.window.get(), 75, "once for all that were under way");
        for _ in 0..40 {
            gate.narrowed.set(None);
            gate.record_duration(10, DEADLINE);
        }
        assert_eq!((gate.window.get(), gate.debt.get()), (10, 90), "one always fits");
        for _ in 0..1_000 {
            gate.record_duration(10, Duration::ZERO);
        }
        assert_eq!((gate.window.get(), gate.debt.get()), (100, 0));
        assert_eq!(gate.free.available_permits(), 100);
    }

    #[test]
    fn a_smaller_window_keeps_the_permits_that_writes_return() {
        run(async {
            let gate = WriteWindow::new(10 * UNIT, 40 * UNIT, DEADLINE);
            let mut passes = Vec::new();
            for _ in 0..4 {
                passes.push(gate.enter(10 * UNIT, DEADLINE).await.unwrap());
            }
            gate.record_duration(10, DEADLINE);
            assert_eq!((gate.window.get(), gate.debt.get()), (30, 10));
            // The write was quick, so some of the debt is cancelled.
            passes.pop();
            assert_eq!((gate.window.get(), gate.debt.get()), (33, 0));
            assert_eq!(gate.free.available_permits(), 3);
            passes.clear();
            assert_eq!(gate.free.available_permits(), gate.window.get());
        });
    }
}
