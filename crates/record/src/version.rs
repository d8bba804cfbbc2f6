//! A version: when a record was written, by the hybrid logical clock, and by which node.

use std::fmt;

/// Bits of a version's time below the microseconds: a counter of the versions of one microsecond.
pub const COUNTER_BITS: u32 = 12;

/// A version: a time of the hybrid logical clock, then the node that issued it.
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
