//! The machine's clocks: the wall clock, for versions and pings, and a monotonic clock, shared by
//! all loops, for durations.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Now;

/// Zero of the monotonic clock: its first reading.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Microseconds by the monotonic clock.
pub(crate) fn mono_micros() -> u64 {
    BEGAN.elapsed().as_micros() as u64
}

/// Reads both clocks.
pub(crate) fn now() -> Now {
    Now { mono: mono_micros(), wall: wall_micros() }
}

/// Converts a monotonic time to an `Instant`.
pub(crate) fn instant(mono: u64) -> Instant {
    *BEGAN + Duration::from_micros(mono)
}
