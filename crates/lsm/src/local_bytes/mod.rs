//! The node-local bytes of a record. Only the store that contains the record reads and writes them.
//!
//! ```text
//!  flags u8 │ reach u8
//! ```
//!
//! Bit 0 of `flags`: the record arrived out of order ("late"). `reach` summarizes the records that
//! the record has hidden in this store: [`HiddenCopies`]. The record's checksum covers neither
//! byte, and neither byte has a meaning in another store.

use std::borrow::Cow;

use record::RecordRef;

mod hidden_copies;

pub(crate) use hidden_copies::HiddenCopies;

const FLAGS_AT: usize = 0;
const HIDDEN_COPIES_AT: usize = 1;

/// The record is late: when it arrived, the older memtables and tables held a version as great or
/// greater. A lookup that finds a late record must also search the older memtables and tables.
const FLAG_LATE: u8 = 1;

/// Returns true if the record arrived out of order: [`FLAG_LATE`].
pub(crate) fn is_late(record: &RecordRef<'_>) -> bool {
    record.local()[FLAGS_AT] & FLAG_LATE != 0
}

/// Summary of the records that `record` has hidden in this store. Includes only the records that a
/// flush or compaction has merged with `record`.
pub(crate) fn hidden_copies(record: &RecordRef<'_>) -> HiddenCopies {
    HiddenCopies::from_u8(record.local()[HIDDEN_COPIES_AT])
}

/// The record's bytes with `hidden_summary` as its hidden copies.
pub(crate) fn raw_with_hidden_copies<'a>(
    record: &RecordRef<'a>,
    hidden_summary: HiddenCopies,
) -> Cow<'a, [u8]> {
    if hidden_summary == hidden_copies(record) {
        return Cow::Borrowed(record.raw());
    }
    let mut raw = record.raw().to_vec();
    set_hidden_copies(&mut raw, hidden_summary);
    Cow::Owned(raw)
}

/// Sets or clears the *late* flag of an encoded record in place.
pub(crate) fn set_late(raw: &mut [u8], late: bool) {
    raw[FLAGS_AT] = (raw[FLAGS_AT] & !FLAG_LATE) | if late { FLAG_LATE } else { 0 };
}

/// Sets the hidden copies of an encoded record in place.
pub(crate) fn set_hidden_copies(raw: &mut [u8], hidden: HiddenCopies) {
    raw[HIDDEN_COPIES_AT] = hidden.to_u8();
}
