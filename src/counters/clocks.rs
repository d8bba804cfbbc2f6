//! The machine's clocks: the wall clock for versions and pings, and a monotonic clock for
//! durations. All loops share the monotonic clock.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use protocol::Now;
use rustix::time::{ClockId, clock_gettime};

/// Zero of the monotonic clock: the time of its first reading, as an instant and in microseconds.
static BEGAN: LazyLock<(Instant, u64)> =
    LazyLock::new(|| (Instant::now(), micros(ClockId::Monotonic)));

/// Returns a clock's time in microseconds, or 0 for a time before the clock's zero.
///
/// Each request reads both clocks up to three times. `Instant` and `SystemTime` check and convert
/// each reading, which takes four times as many instructions.
fn micros(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1_000_000)
        + time.tv_nsec as u64 / 1_000
}

/// Returns the monotonic time in nanoseconds since a point in time that all loops share. Latencies
/// and token rates are computed from it.
#[inline]
pub(crate) fn mono_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1_000_000_000) + time.tv_nsec as u64
}

/// Returns the wall clock's time in microseconds since 1970.
pub(crate) fn wall_micros() -> u64 {
    micros(ClockId::Realtime)
}

/// Returns the monotonic time in microseconds since the clock's first reading.
#[inline]
pub(crate) fn mono_micros() -> u64 {
    let (_, began) = *BEGAN;
    micros(ClockId::Monotonic).saturating_sub(began)
}

/// Reads the wall clock and the monotonic clock.
pub(crate) fn now() -> Now {
    Now { mono: mono_micros(), wall: wall_micros() }
}

/// Converts a monotonic time, in microseconds since the clock's first reading.
pub(crate) fn instant(mono: u64) -> Instant {
    let (began, _) = *BEGAN;
    began + Duration::from_micros(mono)
}
