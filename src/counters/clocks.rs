//! The machine's clocks: the wall clock, for versions and pings, and a monotonic clock, shared by
//! all loops, for durations.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use protocol::Now;
use rustix::time::{ClockId, clock_gettime};

/// Zero of the monotonic clock: the time of the first reading, as an instant and in microseconds.
static BEGAN: LazyLock<(Instant, u64)> =
    LazyLock::new(|| (Instant::now(), micros(ClockId::Monotonic)));

/// Returns a clock's time in microseconds; 0 = before the clock's zero.
///
/// Each request reads both clocks up to three times. `Instant` and `SystemTime` check and convert
/// each reading, which takes four times as many instructions.
fn micros(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1_000_000)
        + time.tv_nsec as u64 / 1_000
}

/// Returns nanoseconds by the monotonic clock, since a point in time that all loops share: the base
/// of latencies and of token rates.
#[inline]
pub(crate) fn mono_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1_000_000_000) + time.tv_nsec as u64
}

/// Returns microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    micros(ClockId::Realtime)
}

/// Returns microseconds by the monotonic clock, since its first reading.
#[inline]
pub(crate) fn mono_micros() -> u64 {
    let (_, began) = *BEGAN;
    micros(ClockId::Monotonic).saturating_sub(began)
}

/// Reads both clocks.
pub(crate) fn now() -> Now {
    Now { mono: mono_micros(), wall: wall_micros() }
}

/// Converts a reading of the monotonic clock, in microseconds.
pub(crate) fn instant(mono: u64) -> Instant {
    let (began, _) = *BEGAN;
    began + Duration::from_micros(mono)
}
