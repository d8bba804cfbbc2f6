//! The simulated clients' records: the engine's own layout, in which every write can be told from
//! every other, tombstones too, even after it was stamped anew.

use bytes::Bytes;
use cluster::{Codec, Kind, Rank, Record, Stamp};
use lsm::{Fields, RecordRef, Version};

/// A client's write, counted from 1. It travels in the place of the expiry, which neither the
/// engine nor the protocol looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WriteId(pub(crate) u64);

/// What the protocol is told about the engine's records.
pub(crate) fn codec() -> Codec {
    Codec { parse, verify, restamp }
}

/// The record of a new write. Its value follows from its number and length.
pub(crate) fn make(key: &[u8], write: WriteId, kind: Kind, copies: u8, stamp: Stamp) -> Record {
    let fields = Fields {
        kind: engine_kind(kind),
        version: Version { time: stamp.time, origin: stamp.origin },
        copies,
        expiry_ms: write.0,
        extension: &[],
    };
    let value = if kind == Kind::Value { value_of(write) } else { Vec::new() };
    from_engine(&lsm::Record::new(key, &fields, &value))
}

/// Which write a record is of; `None` if its content is not that write's.
pub(crate) fn write_of(key: &[u8], record: &Record) -> Option<WriteId> {
    let view = RecordRef::parse(&record.bytes).ok()?;
    view.verify(key).ok()?;
    let write = WriteId(view.expiry_ms());
    let right = match record.rank.kind {
        Kind::Value => view.value() == value_of(write),
        _ => view.value().is_empty(),
    };
    (right && rank_of(view) == record.rank).then_some(write)
}

/// A record as the protocol sees it.
pub(crate) fn from_engine(record: &lsm::Record) -> Record {
    let view = record.view();
    Record { rank: rank_of(view), copies: view.copies(), bytes: record.bytes() }
}

/// The same for one that is lent by a scan.
pub(crate) fn from_view(view: RecordRef<'_>) -> Record {
    Record { rank: rank_of(view), copies: view.copies(), bytes: Bytes::copy_from_slice(view.raw()) }
}

/// What decides about an engine's record.
fn rank_of(view: RecordRef<'_>) -> Rank {
    let kind = match view.kind() {
        lsm::Kind::Value => Kind::Value,
        lsm::Kind::Tombstone => Kind::Tombstone,
        lsm::Kind::Superseded => Kind::Superseded,
    };
    let version = view.version();
    let stamp = Stamp { time: version.time, origin: version.origin };
    Rank { stamp, kind, check: view.check() }
}

/// Records that are longer than this are told by their outlines first: about one in three.
pub(crate) const BRIEF_BYTES: u32 = 180;

/// Most values are short, one in 16 is longer than what travels on a connection of its own.
fn value_of(write: WriteId) -> Vec<u8> {
    let len = match write.0 % 16 {
        0 if write.0.is_multiple_of(64) => 40_000,
        n => 8 + n as usize * 13,
    };
    let word = write.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

fn engine_kind(kind: Kind) -> lsm::Kind {
    match kind {
        Kind::Value => lsm::Kind::Value,
        Kind::Tombstone => lsm::Kind::Tombstone,
        Kind::Superseded => lsm::Kind::Superseded,
    }
}

/// Takes bytes for a record.
pub(crate) fn parse(bytes: Bytes) -> Option<Record> {
    let view = RecordRef::parse(&bytes).ok()?;
    let (rank, copies) = (rank_of(view), view.copies());
    Some(Record { rank, copies, bytes })
}

fn verify(key: &[u8], record: &Record) -> bool {
    RecordRef::parse(&record.bytes).is_ok_and(|view| view.verify(key).is_ok())
}

fn restamp(key: &[u8], record: &Record, stamp: Stamp) -> Record {
    let engines = lsm::Record::parse(record.bytes.clone());
    let engines = engines.expect("a record of a client is well-formed");
    let version = Version { time: stamp.time, origin: stamp.origin };
    from_engine(&engines.restamped(key, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_known_again_under_another_stamp() {
        let stamp = |time| Stamp { time, origin: 3 };
        for kind in [Kind::Value, Kind::Tombstone] {
            let first = make(b"k", WriteId(64), kind, 2, stamp(5));
            let second = (codec().restamp)(b"k", &first, stamp(6));
            assert_eq!(write_of(b"k", &second), Some(WriteId(64)));
            assert_eq!((second.copies, second.rank.stamp, second.rank.kind), (2, stamp(6), kind));
            assert_eq!(write_of(b"other", &second), None);
            assert_eq!((codec().parse)(second.bytes.clone()), Some(second));
        }
    }
}
