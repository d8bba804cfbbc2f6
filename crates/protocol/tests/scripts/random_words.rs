//! Random replies of other nodes to a coordinator, each derived from the bits of a number.

use bytes::Bytes;
use protocol::{
    Change, Condition, Conditional, Done, Impossible, Kind, Operation, Page, Record, Reply, Tag,
    Version,
};
use record::Fields;

use crate::records;
use crate::words::BASE;

/// Returns one of several records of a key that other nodes may hold.
pub(crate) fn record(key: &[u8], n: u64, damaged: bool) -> Record {
    let version = Version { time: (BASE - 10 + n) << 12, origin: 1 };
    let kind = if n == 5 { Kind::Tombstone } else { Kind::Value };
    let record = records::record(key, kind, "old", version, 0);
    if damaged { records::with_wrong_checksum(&record) } else { record }
}

/// Returns a record of another coordinator's conditional write.
pub(crate) fn conditional(key: &[u8], b: u16) -> Record {
    let version = Version { time: (BASE - 10 + u64::from(b >> 8 & 3)) << 12, origin: 1 };
    let operations = 0..u64::from(b >> 10 & 15).min(8);
    let operations: Vec<_> =
        operations.map(|id| Operation { id, result: None, digest: 0 }).collect();
    let step = u32::from(b >> 12 & 3);
    let ballot = (BASE - 10 + u64::from(b >> 11)) << 12;
    // Some of the expiries are before the time of the test, some after it.
    let expiry_ms = if b & 1 == 0 { 0 } else { BASE / 1000 + u64::from(b >> 8 & 63) };
    let plain = Fields::new(Kind::Value, version);
    let fields = Fields { ballot, step, operations: &operations, expiry_ms, ..plain };
    Record::new(key, &fields, b"7")
}

pub(crate) fn conditional_write(b: u16) -> Conditional {
    let condition = match b >> 4 & 3 {
        0 => Condition::Absent,
        1 => Condition::Exists,
        _ => Condition::Any,
    };
    let change = match b >> 2 & 3 {
        0 => Change::Delete,
        1 => Change::Put(Bytes::from("9")),
        _ => Change::Add(1),
    };
    let expiry_ms = if b >> 6 & 3 == 1 { BASE / 1000 + u64::from(b >> 8 & 63) } else { 0 };
    Conditional { condition, change, expiry_ms, digest: 0 }
}

/// Returns the outcome in a leader's reply.
pub(crate) fn outcome(b: u16, adds: bool) -> Done {
    let version = Version { time: newer_time(b), origin: 1 };
    match b >> 4 & 3 {
        0 => Done::Unmet { current: None },
        1 if adds => Done::Impossible(Impossible::Overflow),
        _ => {
            let tag = Tag { version, last: Some((1, u64::from(b))) };
            Done::Changed { tag, result: adds.then_some(1), expiry_ms: 0, fence: 0 }
        }
    }
}

/// Returns a time near the issued versions, sometimes later than any clock accepts.
pub(crate) fn newer_time(b: u16) -> u64 {
    (BASE + u64::from(b >> 8) * 10_000) << 12
}

/// Returns a reply that usually matches the request.
pub(crate) fn reply(b: u16, is_write: bool, found: Option<Record>, authoritative: bool) -> Reply {
    let (verb, newer) = (b % 8, newer_time(b));
    match (verb, found) {
        (0..3, _) if is_write => Reply::Stored,
        (0..3, Some(record)) => Reply::Found { record, authoritative },
        (3, _) if is_write => Reply::Newer { time: newer },
        (3, _) => Reply::Absent { authoritative },
        (4, _) => Reply::Busy,
        (5, _) => Reply::NoSpace,
        (6, _) => Reply::Failed,
        _ if authoritative => Reply::Ahead,
        _ => Reply::Page(Page { items: Vec::new(), next: None, authoritative }),
    }
}

/// Replaces a whole record in a reply by its outline, whose checksum cannot be verified.
pub(crate) fn brief(reply: Reply) -> Reply {
    match reply {
        Reply::Found { record, authoritative } => {
            Reply::Long { outline: record.outline(), authoritative }
        }
        other => other,
    }
}
