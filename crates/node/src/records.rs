//! Between the engine's records and the protocol's, which do not know each other.

use bytes::Bytes;
use cluster::{Codec, Kind, Next, Operation, Rank, Steps, StepsCodec, StoreError, Version};
use lsm::{Fields, Record, RecordRef};

/// What the protocol must have done to the engine's records.
pub const CODEC: Codec = Codec { parse, verify, reissue };

/// The same for conditional writes.
pub const STEPS: StepsCodec = StepsCodec { reballot, steps, value, expiry_ms, build };

/// A new record, with the version that is in `fields`. Its checksum is computed here, once.
pub fn new(key: &[u8], fields: &Fields<'_>, value: &[u8]) -> cluster::Record {
    from_store(&Record::new(key, fields, value))
}

/// The protocol's view of a record.
pub fn from_store(record: &Record) -> cluster::Record {
    view(&record.view(), record.bytes())
}

/// The engine's view of a record that came out of [`from_store`] or [`Codec::parse`].
pub fn to_store(record: &cluster::Record) -> Record {
    Record::parse(record.bytes.clone()).expect("it was parsed before")
}

/// A version of the protocol's, as the engine's.
pub fn version(version: Version) -> lsm::Version {
    lsm::Version { time: version.time, origin: version.origin }
}

/// Whether `record` is a value that has not expired. The wall clock is read only if it can expire.
pub fn is_live(record: &RecordRef<'_>, wall_micros: impl FnOnce() -> u64) -> bool {
    let expiry_ms = record.expiry_ms();
    let has_expired = expiry_ms != 0 && cluster::has_expired(expiry_ms, wall_micros());
    record.kind() == lsm::Kind::Value && !has_expired
}

/// A tombstone of a key with this version.
pub fn tombstone(key: &[u8], new: Version) -> cluster::Record {
    self::new(key, &Fields::new(lsm::Kind::Tombstone, version(new)), b"")
}

/// An error of the engine, in the protocol's kinds.
pub fn store_error(error: &lsm::Error) -> StoreError {
    if error.is_no_space() {
        return StoreError::NoSpace(error.to_string());
    }
    match error {
        lsm::Error::Busy { what } => StoreError::Busy(what),
        lsm::Error::Closing => StoreError::Busy("the node is shutting down"),
        lsm::Error::Failed { begun, .. } => {
            StoreError::Failed { begun: *begun, detail: error.to_string() }
        }
        // Everything else fails before the log is touched.
        _ => StoreError::Failed { begun: false, detail: error.to_string() },
    }
}

/// What decides between a record and others, and its number of copies.
pub(crate) fn rank_of(record: &RecordRef<'_>) -> (Rank, u8) {
    let lsm::Version { time, origin } = record.version();
    let kind = match record.kind() {
        lsm::Kind::Value => Kind::Value,
        lsm::Kind::Tombstone => Kind::Tombstone,
        lsm::Kind::Superseded => Kind::Superseded,
    };
    let (version, ballot) = (Version { time, origin }, record.ballot());
    (Rank { version, ballot, kind, check: record.check() }, record.copies())
}

fn view(record: &RecordRef<'_>, bytes: Bytes) -> cluster::Record {
    let (rank, copies) = rank_of(record);
    cluster::Record { rank, copies, bytes }
}

fn parse(bytes: Bytes) -> Option<cluster::Record> {
    let record = RecordRef::parse(&bytes).ok()?;
    Some(view(&record, bytes.clone()))
}

fn verify(key: &[u8], record: &cluster::Record) -> bool {
    RecordRef::parse(&record.bytes).is_ok_and(|record| record.verify(key).is_ok())
}

/// Only for plain writes: the family of another one is not its own to change.
fn reissue(key: &[u8], record: &cluster::Record, new: Version) -> cluster::Record {
    assert_eq!(record.rank.ballot, 0, "a conditional write keeps its family");
    from_store(&to_store(record).with_version(key, version(new)))
}

fn reballot(key: &[u8], record: &cluster::Record, family: Version, ballot: u64) -> cluster::Record {
    let record = to_store(record);
    if record.view().steps().is_some() {
        let of_family = record.with_version(key, version(family));
        return from_store(&of_family.with_ballot(key, ballot));
    }
    // What conditional writes make has the default number of copies.
    let view = record.view();
    let fields = Fields {
        steps: Some(lsm::Steps { ballot, step: 0, operations: &[] }),
        expiry_ms: view.expiry_ms(),
        extension: view.extension(),
        ..Fields::new(view.kind(), version(family))
    };
    new(key, &fields, view.value())
}

fn steps(record: &cluster::Record) -> Steps {
    let record = to_store(record);
    let Some(steps) = record.view().steps() else { return Steps::default() };
    let operation = |lsm::Operation { id, result }| Operation { id, result };
    Steps { step: steps.step(), operations: steps.operations().map(operation).collect() }
}

fn value(record: &cluster::Record) -> Bytes {
    to_store(record).value()
}

fn expiry_ms(record: &cluster::Record) -> u64 {
    to_store(record).view().expiry_ms()
}

fn build(key: &[u8], next: &Next<'_>) -> cluster::Record {
    let Next { family, ballot, kind, copies, expiry_ms, steps, value } = *next;
    let kind = match kind {
        Kind::Value => lsm::Kind::Value,
        Kind::Tombstone => lsm::Kind::Tombstone,
        Kind::Superseded => lsm::Kind::Superseded,
    };
    let operation = |&Operation { id, result }: &Operation| lsm::Operation { id, result };
    let operations: Vec<_> = steps.operations.iter().map(operation).collect();
    let steps = lsm::Steps { ballot, step: steps.step, operations: &operations };
    let steps = Some(steps);
    let fields = Fields { steps, copies, expiry_ms, ..Fields::new(kind, version(family)) };
    new(key, &fields, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: lsm::Kind, expiry_ms: u64) -> cluster::Record {
        let version = lsm::Version { time: 5, origin: 3 };
        let fields = Fields { copies: 2, expiry_ms, extension: b"x", ..Fields::new(kind, version) };
        new(b"k", &fields, b"value")
    }

    #[test]
    fn a_record_goes_to_the_store_and_back_unchanged() {
        for kind in [lsm::Kind::Value, lsm::Kind::Tombstone, lsm::Kind::Superseded] {
            let record = made(kind, 7);
            assert_eq!(from_store(&to_store(&record)), record);
            assert_eq!((CODEC.parse)(record.bytes.clone()), Some(record.clone()));
            assert!((CODEC.verify)(b"k", &record) && !(CODEC.verify)(b"other", &record));
        }
        assert_eq!((CODEC.parse)(Bytes::from_static(b"no record")), None);
    }

    #[test]
    fn another_version_changes_nothing_else() {
        let first = made(lsm::Kind::Value, 7);
        let version = Version { time: 6, origin: 9 };
        let second = (CODEC.reissue)(b"k", &first, version);
        assert_eq!(
            (second.rank.version, second.rank.kind, second.copies),
            (version, Kind::Value, 2)
        );
        assert!((CODEC.verify)(b"k", &second));
        let (one, other) = (to_store(&first), to_store(&second));
        assert_eq!(one.value(), other.value());
        assert_eq!(one.view().expiry_ms(), other.view().expiry_ms());
        assert_eq!(one.view().extension(), other.view().extension());
    }

    fn conditional(kind: Kind, ballot: u64, operations: &[Operation]) -> cluster::Record {
        let steps = Steps { step: 7, operations: operations.to_vec() };
        let value = if kind == Kind::Value { &b"value"[..] } else { b"" };
        let family = Version { time: 5, origin: 3 };
        let expiry_ms = if kind == Kind::Value { 77 } else { 0 };
        build(b"k", &Next { family, ballot, kind, copies: 2, expiry_ms, steps: &steps, value })
    }

    #[test]
    fn what_a_conditional_write_built_comes_back() {
        let all: Vec<_> = (0..cluster::MAX_OPERATIONS as u64)
            .map(|id| Operation { id: !id, result: (id % 3 == 0).then_some(-(id as i64)) })
            .collect();
        for kind in [Kind::Value, Kind::Tombstone, Kind::Superseded] {
            for operations in [&all[..0], &all[..1], &all[1..2], &all] {
                let record = conditional(kind, 9, operations);
                let version = Version { time: 5, origin: 3 };
                let Rank { version: family, ballot, kind: held, .. } = record.rank;
                assert_eq!((family, ballot, held, record.copies), (version, 9, kind, 2));
                assert_eq!(record.rank.when(), to_store(&record).view().when());
                assert_eq!((CODEC.parse)(record.bytes.clone()), Some(record.clone()));
                assert!((CODEC.verify)(b"k", &record) && !(CODEC.verify)(b"other", &record));
                assert_eq!((STEPS.steps)(&record).step, 7);
                assert_eq!((STEPS.steps)(&record).operations, operations);
                let value = if kind == Kind::Value { &b"value"[..] } else { b"" };
                let expiry_ms = if kind == Kind::Value { 77 } else { 0 };
                assert_eq!(
                    ((STEPS.value)(&record), (STEPS.expiry_ms)(&record)),
                    (value.into(), expiry_ms)
                );
            }
        }
    }

    #[test]
    fn another_ballot_changes_nothing_else() {
        let operations = [Operation { id: 4, result: Some(6) }];
        let first = conditional(Kind::Value, 9, &operations);
        let second = (STEPS.reballot)(b"k", &first, first.rank.version, 12);
        assert!((CODEC.verify)(b"k", &second));
        let check = second.rank.check;
        assert_eq!(second.rank, Rank { ballot: 12, check, ..first.rank });
        assert_eq!(second.copies, first.copies);
        assert_eq!((STEPS.steps)(&second), (STEPS.steps)(&first));
        assert_eq!((STEPS.value)(&second), (STEPS.value)(&first));
        assert_eq!([&first, &second].map(STEPS.expiry_ms), [77, 77]);
        assert_eq!((STEPS.reballot)(b"k", &second, first.rank.version, 9), first);
    }

    #[test]
    fn a_plain_record_has_no_steps() {
        let record = made(lsm::Kind::Value, 7);
        assert_eq!((record.rank.ballot, (STEPS.steps)(&record)), (0, Steps::default()));
        assert_eq!((STEPS.value)(&record), &b"value"[..]);
    }

    #[test]
    #[should_panic(expected = "keeps its family")]
    fn what_a_conditional_write_made_gets_no_other_version() {
        let version = Version { time: 6, origin: 3 };
        (CODEC.reissue)(b"k", &conditional(Kind::Value, 9, &[]), version);
    }

    #[test]
    fn the_store_and_the_protocol_agree_which_record_holds() {
        let other = |time| {
            let fields = Fields::new(lsm::Kind::Tombstone, lsm::Version { time, origin: 3 });
            new(b"k", &fields, b"")
        };
        let records = [
            made(lsm::Kind::Value, 0),
            made(lsm::Kind::Value, 7),
            other(5),
            other(6),
            conditional(Kind::Value, 1, &[]),
            conditional(Kind::Value, 2, &[]),
            conditional(Kind::Tombstone, 2, &[]),
            conditional(Kind::Value, 3, &[Operation { id: 1, result: None }]),
        ];
        for one in &records {
            for two in &records {
                let (a, b) = (to_store(one), to_store(two));
                assert_eq!(a.view().order(&b.view()), one.rank.cmp(&two.rank), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_value_lives_until_it_expires() {
        let live = |kind, expiry_ms, wall_ms: u64| {
            is_live(&to_store(&made(kind, expiry_ms)).view(), || wall_ms * 1000)
        };
        assert!(live(lsm::Kind::Value, 0, 9) && live(lsm::Kind::Value, 10, 9));
        assert!(!live(lsm::Kind::Value, 9, 9) && !live(lsm::Kind::Tombstone, 0, 9));
    }

    #[test]
    fn errors_are_told_apart_by_what_may_have_been_done() {
        let error = |error| store_error(&error);
        assert_eq!(error(lsm::Error::Busy { what: "x" }), StoreError::Busy("x"));
        assert_eq!(error(lsm::Error::Closing), StoreError::Busy("the node is shutting down"));
        let full = lsm::Error::NoSpace { what: "tables" };
        assert!(matches!(error(full), StoreError::NoSpace(_)));
        for begun in [false, true] {
            let failed = lsm::Error::Failed { cause: "sync".into(), begun };
            assert!(matches!(error(failed), StoreError::Failed { begun: b, .. } if b == begun));
        }
    }
}
