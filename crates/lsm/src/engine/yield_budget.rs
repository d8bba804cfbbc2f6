//! The budget by which background work shares the CPU with threads that serve requests.

use super::backlog::{Backlog, BacklogMeter};

/// A counter of processed bytes, by which background work yields the CPU to threads that serve
/// requests. A scheduler gives two busy threads of a CPU some milliseconds each in turn, and a
/// request that arrives on that CPU waits as long. Yielding about every 100 µs keeps this wait out
/// of the tail latency (figures: `docs/results/benchmarks.md`). Background work stops yielding once
/// the backlog exceeds [`MAX_YIELD_BACKLOG`].
#[derive(Default)]
pub(super) struct YieldBudget {
    bytes: usize,
}

/// Bytes of records between two yields: about 100 µs of merging and compressing, or of the reading
/// and verifying of a repair round, which always yields.
pub(super) const YIELD_BYTES: usize = 16 << 10;
/// Backlog at which background work stops yielding.
const MAX_YIELD_BACKLOG: f64 = 0.25;

impl YieldBudget {
    pub(super) fn take(&mut self, backlog: &BacklogMeter, bytes: usize) {
        self.bytes += bytes;
        if self.bytes < YIELD_BYTES {
            return;
        }
        self.bytes = 0;
        match backlog.read() {
            Backlog::Clear => std::thread::yield_now(),
            Backlog::Behind(part) if part < MAX_YIELD_BACKLOG => std::thread::yield_now(),
            Backlog::Behind(_) | Backlog::Full => {}
        }
    }
}
