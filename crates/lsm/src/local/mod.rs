//! The node-local bytes of a record, which only the store that holds the record reads and writes.
//!
//! ```text
//!  flags u8 │ reach u8
//! ```
//!
//! Bit 0 of `flags`: the record arrived out of order ("late"). `reach` summarizes the records that
//! this one has hidden in this store: [`Reach`]. The checksum of the record covers neither byte,
//! and neither has a meaning in another store.

use std::borrow::Cow;

use record::RecordRef;

mod reach;

pub(crate) use reach::Reach;

const FLAGS_AT: usize = 0;
const REACH_AT: usize = 1;

/// The record arrived with a version no greater than the maximum in the older memtables and tables.
/// A lookup that finds such a record must continue in them.
const FLAG_LATE: u8 = 1;

/// Returns true if the record arrived out of order: [`FLAG_LATE`].
pub(crate) fn is_late(record: &RecordRef<'_>) -> bool {
    record.local()[FLAGS_AT] & FLAG_LATE != 0
}

/// Summary of the records that this one has hidden in this store, as far as they were merged with
/// it.
pub(crate) fn reach(record: &RecordRef<'_>) -> Reach {
    Reach::from_u8(record.local()[REACH_AT])
}

/// The record's bytes with `noted` as its reach.
pub(crate) fn raw_with<'a>(record: &RecordRef<'a>, noted: Reach) -> Cow<'a, [u8]> {
    if noted == reach(record) {
        return Cow::Borrowed(record.raw());
    }
    let mut raw = record.raw().to_vec();
    set_reach(&mut raw, noted);
    Cow::Owned(raw)
}

/// Sets or clears the *late* flag of an encoded record in place.
pub(crate) fn set_late(raw: &mut [u8], late: bool) {
    raw[FLAGS_AT] = (raw[FLAGS_AT] & !FLAG_LATE) | if late { FLAG_LATE } else { 0 };
}

/// Sets the reach of an encoded record in place.
pub(crate) fn set_reach(raw: &mut [u8], reach: Reach) {
    raw[REACH_AT] = reach.to_u8();
}
