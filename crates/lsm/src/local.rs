//! The node-local bytes of a record: notes of the store that holds the record.
//!
//! ```text
//!  flags u8 │ reach u8
//! ```
//!
//! Bit 0 of `flags`: the record came late. `reach` is what the record has hidden here: [`Reach`].
//! Neither byte is covered by a record's check, or means anything to another store.

use std::borrow::Cow;

use record::RecordRef;

mod reach;

pub(crate) use reach::Reach;

const FLAGS_AT: usize = 0;
const REACH_AT: usize = 1;

/// The record's version is not greater than everything that was in older memtables or tables when
/// it arrived: a reader that meets it must look further.
const FLAG_LATE: u8 = 1;

/// Whether the record has the flag *late*: [`FLAG_LATE`].
pub(crate) fn is_late(record: &RecordRef<'_>) -> bool {
    record.local()[FLAGS_AT] & FLAG_LATE != 0
}

/// The note of what the record has hidden in this store, as far as that was merged with it.
pub(crate) fn reach(record: &RecordRef<'_>) -> Reach {
    Reach::from_u8(record.local()[REACH_AT])
}

/// The record's bytes with this noted as what it has hidden.
pub(crate) fn raw_with<'a>(record: &RecordRef<'a>, noted: Reach) -> Cow<'a, [u8]> {
    if noted == reach(record) {
        return Cow::Borrowed(record.raw());
    }
    let mut raw = record.raw().to_vec();
    set_reach(&mut raw, noted);
    Cow::Owned(raw)
}

/// Marks an encoded record as late (or not) in place.
pub(crate) fn set_late(raw: &mut [u8], late: bool) {
    raw[FLAGS_AT] = (raw[FLAGS_AT] & !FLAG_LATE) | if late { FLAG_LATE } else { 0 };
}

/// Notes in place what an encoded record has hidden.
pub(crate) fn set_reach(raw: &mut [u8], reach: Reach) {
    raw[REACH_AT] = reach.to_u8();
}
