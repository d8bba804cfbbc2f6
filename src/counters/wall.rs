//! The wall clock, as versions and the nodes' pings show it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Bits of a version's time below its microseconds.
pub(crate) const COUNTER_BITS: u32 = 12;

/// Microseconds since 1970 by the wall clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
