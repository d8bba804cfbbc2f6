//! Conditional writes that clients gave an idempotency key: this node keeps those that it has
//! stored, for as long as a client may send them again.
//!
//! ```text
//!  Space::Idempotency   key := hash of the user's key u64 │ id u64
//!                       value := family (time u64, origin u32) │ step u32 │ sum i64, if any
//!                       version := time: the ballot of the record that it was stored with;
//!                                  origin: 0 = the record came from its coordinator,
//!                                  1 = from another replica
//! ```
//!
//! An entry is in the batch of its record. It goes when its table is merged and it is older than
//! [`REMEMBERED_MICROS`](cluster::REMEMBERED_MICROS): see [`purge_rule`](crate::store::purge_rule).

use bytes::Bytes;
use cluster::{Done, Recalled, Record, Shared, StoreError, Tag, Version, Via, has_idempotency_key};
use lsm::{Batch, Space};
use xxhash_rust::xxh3::xxh3_64;

use crate::records;

/// Bytes of a value without a sum.
const VALUE_LEN: usize = 8 + 4 + 4;

/// About what an entry adds to a batch, in bytes.
pub(crate) const OPERATION_BYTES: usize = 80;

/// The key of an entry.
pub(crate) fn name(key: &[u8], id: u64) -> Bytes {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&xxh3_64(key).to_be_bytes());
    name[8..].copy_from_slice(&id.to_be_bytes());
    Bytes::copy_from_slice(&name)
}

/// Adds those of a record that this process does not know to be kept already.
pub(crate) fn put(
    shared: &Shared,
    batch: &mut Batch,
    (key, record): (&[u8], &Record),
    via: Via,
) -> Result<(), lsm::Error> {
    if record.rank.ballot == 0 {
        return Ok(());
    }
    let steps = (records::STEPS.steps)(record);
    for (step, operation) in steps.numbered() {
        if !has_idempotency_key(operation.id) || shared.has_stored(key, operation.id) {
            continue;
        }
        let family = record.rank.version;
        let mut value = Vec::with_capacity(VALUE_LEN + 8);
        value.extend_from_slice(&family.time.to_le_bytes());
        value.extend_from_slice(&family.origin.to_le_bytes());
        value.extend_from_slice(&step.to_le_bytes());
        value.extend(operation.result.iter().flat_map(|sum| sum.to_le_bytes()));
        let version = lsm::Version { time: record.rank.ballot, origin: via as u32 };
        batch.put(Space::Idempotency, &name(key, operation.id), version, &value)?;
    }
    Ok(())
}

/// What an entry says of the write that is known by `id`.
pub(crate) fn parse(id: u64, entry: &Record) -> Result<Recalled, StoreError> {
    let value = (records::STEPS.value)(entry);
    let damaged = || StoreError::Failed {
        begun: false,
        detail: "what is kept of a write with an idempotency key is malformed".to_owned(),
    };
    let (fixed, sum) = value.split_at_checked(VALUE_LEN).ok_or_else(damaged)?;
    let number = |at: usize| fixed[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
    let time = u64::from(number(4)) << 32 | u64::from(number(0));
    let tag = Tag { version: Version { time, origin: number(8) }, last: Some((number(12), id)) };
    let result = match sum.len() {
        0 => None,
        _ => Some(i64::from_le_bytes(sum.try_into().map_err(|_| damaged())?)),
    };
    let Version { time: ballot, origin: via } = entry.rank.version;
    let ballot = if via == Via::Accept as u32 { ballot } else { 0 };
    Ok(Recalled::Stored { ballot, done: Done::Changed { tag, result, expiry_ms: 0 } })
}

#[cfg(test)]
mod tests {
    use cluster::{Kind, Next, Operation, Steps};
    use lsm::{Fields, Lookup, Wait};

    use super::*;
    use crate::stage::Stage;
    use crate::store::Store;

    const FAMILY: Version = Version { time: 7 << 40, origin: 9 };

    fn record(ballot: u64, operations: &[(u64, Option<i64>)]) -> Record {
        let operation = |&(id, result): &(u64, Option<i64>)| Operation { id, result };
        let steps = Steps { step: 20, operations: operations.iter().map(operation).collect() };
        let (kind, copies, expiry_ms, value) = (Kind::Value, 0, 0, &b"v"[..]);
        let next = Next { family: FAMILY, ballot, kind, copies, expiry_ms, steps: &steps, value };
        (records::STEPS.build)(b"k", &next)
    }

    fn found(stage: &Stage, id: u64) -> Option<Recalled> {
        let entry = stage.engine.get(Space::Idempotency, &name(b"k", id), Wait::No).unwrap();
        let Lookup::Found(entry) = entry else { return None };
        Some(parse(id, &records::from_store(&entry)).unwrap())
    }

    #[test]
    fn those_with_an_idempotency_key_are_kept() {
        let stage = Stage::new();
        let mut batch = Batch::new();
        let record = record(99, &[(4, None), (5, None), (7, Some(-3))]);
        put(&stage.shared, &mut batch, (b"k", &record), Via::Accept).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let stored = |id, step, result| {
            let tag = Tag { version: FAMILY, last: Some((step, id)) };
            Some(Recalled::Stored { ballot: 99, done: Done::Changed { tag, result, expiry_ms: 0 } })
        };
        assert_eq!(
            [found(&stage, 5), found(&stage, 7)],
            [stored(5, 19, None), stored(7, 20, Some(-3))]
        );
        assert_eq!([found(&stage, 4), found(&stage, 9)], [None, None]);
    }

    #[test]
    fn what_came_from_a_replica_does_not_count_as_accepted() {
        let stage = Stage::new();
        let mut batch = Batch::new();
        put(&stage.shared, &mut batch, (b"k", &record(99, &[(5, None)])), Via::Replica).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let tag = Tag { version: FAMILY, last: Some((20, 5)) };
        let done = Done::Changed { tag, result: None, expiry_ms: 0 };
        let stored = Recalled::Stored { ballot: 0, done };
        assert_eq!(found(&stage, 5), Some(stored));
    }

    #[test]
    fn an_entry_that_is_none_is_refused() {
        for value in [&b""[..], &[0; VALUE_LEN - 1], &[0; VALUE_LEN + 7], &[0; VALUE_LEN + 9]] {
            let fields = Fields::new(lsm::Kind::Value, lsm::Version { time: 1, origin: 0 });
            parse(1, &records::new(b"k", &fields, value)).unwrap_err();
        }
    }
}
