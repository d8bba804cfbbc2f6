//! Durations of the store's work: a histogram of commit times per group, and total times of flushes
//! and compactions. The engine reads no clock, so these durations are measured around its calls.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::stats::{COMMIT_BUCKETS, FIRST_COMMIT_NANOS, Stats};

/// Time spent in one kind of work, such as flushes. One piece of the work runs at a time.
#[derive(Default)]
pub(super) struct WorkDuration {
    /// Nanoseconds of completed pieces.
    ended: AtomicU64,
    /// Start of the piece in progress by `clock_nanos`; 0 = none.
    since: AtomicU64,
    /// Greatest reported total. Keeps the total from decreasing between the end of a piece and its
    /// addition to `ended`.
    reported: AtomicU64,
}

/// All durations of a store.
pub(super) struct WorkDurations {
    pub(super) flush: WorkDuration,
    pub(super) compaction: WorkDuration,
    commits: [AtomicU64; COMMIT_BUCKETS],
    commit_nanos: AtomicU64,
}

/// Returns the monotonic clock's time in nanoseconds, at least 1.
///
/// Each group of writes reads this clock twice. `Instant` takes about 35 more instructions per
/// reading.
fn clock_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    (seconds * 1_000_000_000 + time.tv_nsec as u64).max(1)
}

impl WorkDurations {
    pub(super) fn new() -> Self {
        Self {
            flush: WorkDuration::default(),
            compaction: WorkDuration::default(),
            commits: Default::default(),
            commit_nanos: AtomicU64::new(0),
        }
    }

    /// Executes and measures a piece of work. The duration is added only if `counts` returns true
    /// for the outcome, so that a step without work is left out.
    pub(super) fn measure<T>(
        &self,
        busy: &WorkDuration,
        work: impl FnOnce() -> T,
        counts: impl FnOnce(&T) -> bool,
    ) -> T {
        let begun = clock_nanos();
        busy.since.store(begun, Ordering::Relaxed);
        let outcome = work();
        busy.since.store(0, Ordering::Relaxed);
        if counts(&outcome) {
            let took = clock_nanos().saturating_sub(begun);
            busy.ended.fetch_add(took, Ordering::Relaxed);
        }
        outcome
    }

    /// Executes and measures the commit of a group.
    pub(super) fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        let begun = clock_nanos();
        let outcome = commit();
        let took = clock_nanos().saturating_sub(begun);
        let doublings = u64::BITS - (took.saturating_sub(1) / FIRST_COMMIT_NANOS).leading_zeros();
        let bucket = (doublings as usize).min(COMMIT_BUCKETS - 1);
        self.commits[bucket].fetch_add(1, Ordering::Relaxed);
        self.commit_nanos.fetch_add(took, Ordering::Relaxed);
        outcome
    }

    pub(super) fn fill_stats(&self, stats: &mut Stats) {
        let now = clock_nanos();
        stats.flush_nanos = self.flush.nanos(now);
        stats.compaction_nanos = self.compaction.nanos(now);
        for (sum, bucket) in stats.commit_times.iter_mut().zip(&self.commits) {
            *sum = bucket.load(Ordering::Relaxed);
        }
        stats.commit_nanos = self.commit_nanos.load(Ordering::Relaxed);
    }
}

impl WorkDuration {
    /// Total in nanoseconds, including the elapsed time of the piece in progress at `now`, a time
    /// of `clock_nanos`.
    fn nanos(&self, now: u64) -> u64 {
        let under_way = match self.since.load(Ordering::Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        };
        let sum = self.ended.load(Ordering::Relaxed) + under_way;
        self.reported.fetch_max(sum, Ordering::Relaxed).max(sum)
    }
}
