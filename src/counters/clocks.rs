//! The machine's clocks: the wall clock, for versions and pings, and a monotonic clock, shared by
//! all loops, for durations.
#![allow(unsafe_code, reason = "the C library's clock without conversions has no safe form")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cluster::Now;
use libc::{CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, clockid_t, timespec};

/// Zero of the monotonic clock: the time of the first reading, twice.
static BEGAN: LazyLock<(Instant, u64)> =
    LazyLock::new(|| (Instant::now(), micros(CLOCK_MONOTONIC)));

/// Returns a clock's time in microseconds; 0 = before the clock's zero.
///
/// Each request reads both clocks up to three times. `Instant` and `SystemTime` check and convert
/// each reading, which takes four times as many instructions. The C library reads the clock, so
/// that libfaketime can replace it: rustix asks the kernel's page itself, past that.
fn micros(clock: clockid_t) -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the duration of the call. Both clocks that are read exist on
    // every Linux; of one that does not, `time` would stay zero.
    unsafe { clock_gettime(clock, &raw mut time) };
    u64::try_from(time.tv_sec).map_or(0, |seconds| seconds * 1_000_000)
        + time.tv_nsec as u64 / 1_000
}

/// Microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    micros(CLOCK_REALTIME)
}

/// Microseconds by the monotonic clock.
pub(crate) fn mono_micros() -> u64 {
    let (_, began) = *BEGAN;
    micros(CLOCK_MONOTONIC).saturating_sub(began)
}

/// The readings of both clocks.
pub(crate) fn now() -> Now {
    Now { mono: mono_micros(), wall: wall_micros() }
}

/// The instant of a reading of the monotonic clock.
pub(crate) fn instant(mono: u64) -> Instant {
    let (began, _) = *BEGAN;
    began + Duration::from_micros(mono)
}
