//! Congestion control for long writes, which limits the bytes of unfinished long writes to the
//! amount that the replicas can complete well before the deadline.
//!
//! ```text
//!   a write took long    the window shrinks by a quarter
//!   a write was quick    the window grows a bit, up to the memory budget for bodies
//!
//!   enter ─▶ the write waits, nothing is sent yet ─▶ the write is sent ─▶ leave
//! ```
//!
//! If data were sent to replicas that are behind, it would wait there until the write's deadline,
//! and the write's outcome would be unknown. So the write waits here instead, where a refusal has
//! no effect on the key. The rule is that of TCP's congestion window: additive increase,
//! multiplicative decrease.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes per semaphore permit.
const UNIT: usize = 1 << 10;

/// A write that takes longer than 1/`TARGET_SHARE` of the deadline shows that too many bytes are
/// being written. The last byte takes as long as all bytes before it.
const TARGET_SHARE: u32 = 2;

/// One loop's congestion window and its admission permits.
#[derive(Debug)]
pub(crate) struct WriteWindow {
    free: Semaphore,
    /// Size of the window, in permits. `window` + `debt` permits exist.
    window: Cell<usize>,
    /// Number of permits that are removed when writes return them.
    debt: Cell<usize>,
    /// Minimum and maximum of the window, in permits. The minimum admits one write of any length.
    range: (usize, usize),
    target_duration: Duration,
    /// Time at which the window last shrank. Writes that were running at that time do not shrink it
    /// again.
    shrunk_at: Cell<Option<Instant>>,
}

/// The permit of a running write.
#[derive(Debug)]
pub(crate) struct WritePermit<'a> {
    limiter: &'a WriteWindow,
    permit: Option<SemaphorePermit<'a>>,
    since: Instant,
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).max(1)
}

impl WriteWindow {
    /// Creates a window for writes of at most `longest` bytes each, and `most` bytes in total.
    pub(crate) fn new(longest: usize, most: usize, deadline: Duration) -> Self {
        let least = units(longest);
        let most = units(most).max(least);
        Self {
            free: Semaphore::new(most),
            window: Cell::new(most),
            debt: Cell::new(0),
            range: (least, most),
            target_duration: deadline / TARGET_SHARE,
            shrunk_at: Cell::new(None),
        }
    }

    /// Admits a write of `bytes` bytes, in order of arrival; `None` if its turn does not come
    /// within `max_wait`.
    pub(crate) async fn enter(&self, bytes: usize, max_wait: Duration) -> Option<WritePermit<'_>> {
        let wanted = units(bytes).min(self.range.0) as u32;
        let permit = match self.free.try_acquire_many(wanted) {
            Ok(permit) => permit,
            Err(_) => {
                let waiting = self.free.acquire_many(wanted);
                tokio::time::timeout(max_wait, waiting).await.ok()?.ok()?
            }
        };
        Some(WritePermit { limiter: self, permit: Some(permit), since: Instant::now() })
    }

    fn record_duration(&self, units: usize, took: Duration) {
        let (least, most) = self.range;
        let (window, now) = (self.window.get(), Instant::now());
        if took <= self.target_duration {
            let wider = (window + (units * units / window).max(1)).min(most);
            let more = wider - window;
            // Growth of the window cancels debt first.
            let forgiven = more.min(self.debt.get());
            self.debt.set(self.debt.get() - forgiven);
            self.free.add_permits(more - forgiven);
            self.window.set(wider);
            return;
        }
        let lately = |at: Instant| now.duration_since(at) < self.target_duration;
        if !self.shrunk_at.get().is_some_and(lately) {
            let narrower = (window - window / 4).max(least);
            self.debt.set(self.debt.get() + window - narrower);
            self.window.set(narrower);
            self.shrunk_at.set(Some(now));
        }
    }
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        let Some(mut permit) = self.permit.take() else { return };
        let units = permit.num_permits();
        self.limiter.record_duration(units, self.since.elapsed());
        let owed = self.limiter.debt.get().min(units);
        if let Some(taken) = permit.split(owed) {
            taken.forget();
            self.limiter.debt.set(self.limiter.debt.get() - owed);
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
    fn a_write_waits_until_another_returns_its_permit() {
        run(async {
            let limiter = WriteWindow::new(10 * UNIT, 30 * UNIT, DEADLINE);
            let short = Duration::from_millis(1);
            let mut passes = Vec::new();
            for _ in 0..3 {
                passes.push(limiter.enter(10 * UNIT, short).await.unwrap());
            }
            assert!(limiter.enter(1, short).await.is_none());
            let waiting = limiter.enter(10 * UNIT, Duration::MAX);
            let leaving = async { drop(passes.pop()) };
            assert!(tokio::join!(waiting, leaving).0.is_some());
        });
    }

    #[test]
    fn the_window_shrinks_after_slow_writes_and_grows_after_quick_ones() {
        let limiter = WriteWindow::new(10 * UNIT, 100 * UNIT, DEADLINE);
        limiter.record_duration(10, DEADLINE);
        limiter.record_duration(10, DEADLINE);
        assert_eq!(limiter.window.get(), 75, "once for all that were under way");
        for _ in 0..40 {
            limiter.shrunk_at.set(None);
            limiter.record_duration(10, DEADLINE);
        }
        assert_eq!((limiter.window.get(), limiter.debt.get()), (10, 90), "one always fits");
        for _ in 0..1_000 {
            limiter.record_duration(10, Duration::ZERO);
        }
        assert_eq!((limiter.window.get(), limiter.debt.get()), (100, 0));
        assert_eq!(limiter.free.available_permits(), 100);
    }

    #[test]
    fn a_smaller_window_keeps_the_permits_that_writes_return() {
        run(async {
            let limiter = WriteWindow::new(10 * UNIT, 40 * UNIT, DEADLINE);
            let mut passes = Vec::new();
            for _ in 0..4 {
                passes.push(limiter.enter(10 * UNIT, DEADLINE).await.unwrap());
            }
            limiter.record_duration(10, DEADLINE);
            assert_eq!((limiter.window.get(), limiter.debt.get()), (30, 10));
            // The write was quick, so a part of the debt is canceled.
            passes.pop();
            assert_eq!((limiter.window.get(), limiter.debt.get()), (33, 0));
            assert_eq!(limiter.free.available_permits(), 3);
            passes.clear();
            assert_eq!(limiter.free.available_permits(), limiter.window.get());
        });
    }
}
