//! The formats of stores that this release opens and writes.

use std::fmt;

/// Store formats that this release opens and writes. The format of a store is the number in its
/// file `STORE`.
pub const STORE_FORMATS: FormatRange = FormatRange { first: 1, last: 1 };

/// A range of store formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatRange {
    /// The earliest format of the range, which new stores get.
    pub first: u32,
    /// The latest format of the range.
    pub last: u32,
}

impl fmt::Display for FormatRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.first, self.last)
    }
}
