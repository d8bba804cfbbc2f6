//! Versions: the time of a write by the hybrid logical clock, and the origin.

use std::fmt;

/// The low bits of a version time: a counter of the versions in one microsecond.
pub const COUNTER_BITS: u32 = 12;

/// A version: the time of a hybrid logical clock, then the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// 52 bits of microseconds since 1970, then a 12-bit counter.
    pub time: u64,
    /// The hash of the issuing node's name.
    pub origin: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:08x}", self.time, self.origin)
    }
}
