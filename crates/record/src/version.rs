//! Versions: the time of a write by the hybrid logical clock, and the issuing node.

use std::fmt;

/// Bits of a version time below the microseconds: a counter of versions in the same microsecond.
pub const COUNTER_BITS: u32 = 12;

/// A version: a hybrid logical clock time, then the issuing node.
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
