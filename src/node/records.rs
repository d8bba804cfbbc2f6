//! Between the engine's records and the protocol's, which do not know each other.

use bytes::Bytes;
use cluster::{Codec, Kind, Rank, Stamp, StoreError};
use lsm::{Record, RecordRef, Version};

use crate::node::pages::PageError;

/// What the protocol must have done to the engine's records.
pub(crate) const CODEC: Codec = Codec { parse, verify, restamp };

/// The protocol's view of a record.
pub(crate) fn from_store(record: &Record) -> cluster::Record {
    view(&record.view(), record.bytes())
}

/// The engine's view of a record that came out of [`from_store`] or [`Codec::parse`].
pub(crate) fn to_store(record: &cluster::Record) -> Record {
    Record::parse(record.bytes.clone()).expect("it was parsed before")
}

/// A stamp is the engine's version.
pub(crate) fn version(stamp: Stamp) -> Version {
    Version { time: stamp.time, origin: stamp.origin }
}

/// An error of the engine, as the protocol tells them apart.
pub(crate) fn store_error(error: &lsm::Error) -> StoreError {
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

/// Why there is no page, as the protocol tells errors apart.
pub(crate) fn page_error(error: &PageError) -> StoreError {
    match error {
        PageError::NoRoom => StoreError::Busy("too many concurrent range reads"),
        PageError::Store(error) => store_error(error),
    }
}

fn view(record: &RecordRef<'_>, bytes: Bytes) -> cluster::Record {
    let Version { time, origin } = record.version();
    let kind = match record.kind() {
        lsm::Kind::Value => Kind::Value,
        lsm::Kind::Tombstone => Kind::Tombstone,
        lsm::Kind::Superseded => Kind::Superseded,
    };
    let rank = Rank { stamp: Stamp { time, origin }, kind, check: record.check() };
    cluster::Record { rank, copies: record.copies(), bytes }
}

fn parse(bytes: Bytes) -> Option<cluster::Record> {
    let record = RecordRef::parse(&bytes).ok()?;
    Some(view(&record, bytes.clone()))
}

fn verify(key: &[u8], record: &cluster::Record) -> bool {
    RecordRef::parse(&record.bytes).is_ok_and(|record| record.verify(key).is_ok())
}

fn restamp(key: &[u8], record: &cluster::Record, stamp: Stamp) -> cluster::Record {
    from_store(&to_store(record).restamped(key, version(stamp)))
}
