//! Between the engine's records and the protocol's, which do not know each other.

use bytes::Bytes;
use cluster::{Codec, Kind, Rank, StepsCodec, StoreError, Version};
use lsm::{Fields, Record, RecordRef};

/// What the protocol must have done to the engine's records.
pub const CODEC: Codec = Codec { parse, verify, reissue };

/// The same for conditional writes.
pub const STEPS: StepsCodec = StepsCodec {
    reballot: |_, _, _| todo!(),
    steps: |_| todo!(),
    value: |_| todo!(),
    build: |_, _| todo!(),
};

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
    record.kind() == lsm::Kind::Value && (expiry_ms == 0 || expiry_ms > wall_micros() / 1000)
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

fn view(record: &RecordRef<'_>, bytes: Bytes) -> cluster::Record {
    let lsm::Version { time, origin } = record.version();
    let kind = match record.kind() {
        lsm::Kind::Value => Kind::Value,
        lsm::Kind::Tombstone => Kind::Tombstone,
        lsm::Kind::Superseded => Kind::Superseded,
    };
    let rank = Rank { version: Version { time, origin }, ballot: 0, kind, check: record.check() };
    cluster::Record { rank, copies: record.copies(), bytes }
}

fn parse(bytes: Bytes) -> Option<cluster::Record> {
    let record = RecordRef::parse(&bytes).ok()?;
    Some(view(&record, bytes.clone()))
}

fn verify(key: &[u8], record: &cluster::Record) -> bool {
    RecordRef::parse(&record.bytes).is_ok_and(|record| record.verify(key).is_ok())
}

fn reissue(key: &[u8], record: &cluster::Record, new: Version) -> cluster::Record {
    from_store(&to_store(record).with_version(key, version(new)))
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
