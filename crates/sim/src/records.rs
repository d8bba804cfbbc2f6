//! Records that the simulated clients write. Every record, also a tombstone, identifies its write,
//! even after the record was reissued with a new version.

use lsm::Fields;
use protocol::{Kind, Record};

use crate::histories::is_contended;
use crate::values;

/// The number of a client's write, counted from 1. The extension of the write's record contains the
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WriteId(pub(crate) u64);

impl WriteId {
    /// Encodes the id for the record's extension.
    pub(crate) fn extension(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Returns the write's value, derived from its number.
    pub(crate) fn value(self, kind: Kind) -> Vec<u8> {
        if kind == Kind::Value { value_of(self) } else { Vec::new() }
    }
}

/// Creates the record of a new write.
pub(crate) fn make(key: &[u8], write: WriteId, fields: Fields<'_>) -> Record {
    let extension = &write.extension()[..];
    let value = match fields.kind {
        lsm::Kind::Value if is_contended(key) => values::encode(values::value_of(write.0)),
        lsm::Kind::Value => write.value(Kind::Value),
        _ => Vec::new(),
    };
    Record::new(key, &Fields { extension, ..fields }, &value)
}

/// Returns the write that a record identifies, or `None` if the record's contents differ from those
/// of that write.
pub(crate) fn write_of(key: &[u8], record: &Record) -> Option<WriteId> {
    let view = record.view();
    let write = WriteId(u64::from_le_bytes(view.extension().try_into().ok()?));
    let whole = record.is_intact(key) && view.value() == write.value(record.kind());
    whole.then_some(write)
}

/// Length in bytes above which replicas first report only an outline of a record. About one record
/// in three is longer.
pub(crate) const BRIEF_BYTES: u32 = 180;

/// Returns the value of a write. Most values are short; one in 64 is long enough to be sent in
/// pieces.
fn value_of(write: WriteId) -> Vec<u8> {
    let len = match write.0 % 16 {
        0 if write.0.is_multiple_of(64) => 40_000,
        n => 8 + n as usize * 13,
    };
    let word = write.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use protocol::Version;

    use super::*;

    #[test]
    fn a_reissued_write_is_recognised() {
        let version = lsm::Version { time: 5, origin: 3 };
        for kind in [lsm::Kind::Value, lsm::Kind::Tombstone] {
            let fields = Fields { copies: 2, ..Fields::new(kind, version) };
            let first = make(b"k", WriteId(64), fields);
            let second = first.with_version(b"k", Version { time: 6, origin: 3 });
            assert_eq!(write_of(b"k", &second), Some(WriteId(64)));
            assert_eq!(write_of(b"other", &second), None);
        }
    }
}
