//! The machine's clocks: the wall clock, as versions and the nodes' pings show it, and one that
//! only counts, by which all loops tell how much later it is.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Now;

/// When the clock that only counts was at zero: when it was first looked at.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Microseconds by the clock that only counts.
pub(crate) fn mono_micros() -> u64 {
    BEGAN.elapsed().as_micros() as u64
}

/// What both show.
pub(crate) fn now() -> Now {
    Now { mono: mono_micros(), wall: wall_micros() }
}

/// The moment that this is by the clock that only counts.
pub(crate) fn instant(mono: u64) -> Instant {
    *BEGAN + Duration::from_micros(mono)
}
