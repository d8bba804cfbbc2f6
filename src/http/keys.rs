//! The keys that a request reads or writes.

/// The keys that an action reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys<'a> {
    None,
    One(&'a [u8]),
    /// Keys from `start` to before `end`; without `end` to the last key.
    Range {
        start: &'a [u8],
        end: Option<&'a [u8]>,
    },
}
