//! Conditional writes that clients gave an idempotency key: this node keeps those that it has
//! stored, for as long as a client may send them again.
//!
//! ```text
//!  Space::Idempotency   key := hash of the user's key u64 │ id u64
//!                       value := family (time u64, origin u32) │ step u32 │ ballot u64, if chosen
//!                                │ sum i64, if any
//!                       version := time: the ballot of the record that it was stored with;
//!                                  origin: 0 = the record came from its coordinator,
//!                                  1 = from another replica,
//!                                  2 = chosen, as those report that had the partition before
//! ```
//!
//! An entry is in the batch of its record, or was sent to a node to which its partition moved. It
//! goes when its table is merged and it is older than
//! [`REMEMBERED_MICROS`](cluster::REMEMBERED_MICROS): see [`purge_rule`](crate::store::purge_rule).

use bytes::{Buf, Bytes};
use cluster::{
    Done, Recalled, Record, Remembered, Shared, StoreError, Tag, Version, Via, has_idempotency_key,
};
use lsm::{Batch, Space};
use xxhash_rust::xxh3::xxh3_64;

use crate::records;

/// Bytes of a value without a ballot and a sum.
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
    let (time, family) = (record.rank.ballot, record.rank.version);
    if time == 0 {
        return Ok(());
    }
    let (steps, key_hash) = ((records::STEPS.steps)(record), xxh3_64(key));
    for (step, operation) in steps.numbered() {
        let (id, result) = (operation.id, operation.result);
        if has_idempotency_key(id) && !shared.has_stored(key, id) {
            let entry = Remembered { key_hash, id, time, via, ballot: time, family, step, result };
            put_entry(batch, &entry)?;
        }
    }
    Ok(())
}

/// Adds one entry to a batch.
pub(crate) fn put_entry(batch: &mut Batch, entry: &Remembered) -> Result<(), lsm::Error> {
    let Remembered { time, via, ballot, family, step, result, .. } = *entry;
    let mut value = Vec::with_capacity(VALUE_LEN + 16);
    value.extend_from_slice(&family.time.to_le_bytes());
    value.extend_from_slice(&family.origin.to_le_bytes());
    value.extend_from_slice(&step.to_le_bytes());
    if via == Via::Chosen {
        value.extend_from_slice(&ballot.to_le_bytes());
    }
    value.extend(result.iter().flat_map(|sum| sum.to_le_bytes()));
    let version = lsm::Version { time, origin: via as u32 };
    batch.put(Space::Idempotency, &entry.name(), version, &value)
}

/// What an entry says, if its content is what was written under its key.
pub fn remembered(name: &[u8], entry: &Record) -> Option<Remembered> {
    let is_right = (records::CODEC.verify)(name, entry);
    let (key_hash, id) = name.split_first_chunk().filter(|_| is_right)?;
    let name = (u64::from_be_bytes(*key_hash), u64::from_be_bytes(id.try_into().ok()?));
    read(name, entry)
}

fn read((key_hash, id): (u64, u64), entry: &Record) -> Option<Remembered> {
    let mut value = (records::STEPS.value)(entry);
    let Version { time, origin } = entry.rank.version;
    let via = match origin {
        0 => Via::Accept,
        1 => Via::Replica,
        2 => Via::Chosen,
        _ => return None,
    };
    let family =
        Version { time: value.try_get_u64_le().ok()?, origin: value.try_get_u32_le().ok()? };
    let step = value.try_get_u32_le().ok()?;
    let ballot = match via {
        Via::Accept => time,
        Via::Replica => 0,
        Via::Chosen => value.try_get_u64_le().ok()?,
    };
    let result = if value.is_empty() { None } else { Some(value.try_get_i64_le().ok()?) };
    let entry = Remembered { key_hash, id, time, via, ballot, family, step, result };
    value.is_empty().then_some(entry)
}

/// What an entry says of the write that is known by `id`.
pub(crate) fn parse(id: u64, entry: &Record) -> Result<Recalled, StoreError> {
    let damaged = || StoreError::Failed {
        begun: false,
        detail: "what is kept of a write with an idempotency key is malformed".to_owned(),
    };
    let Remembered { ballot, family, step, result, .. } =
        read((0, id), entry).ok_or_else(damaged)?;
    let tag = Tag { version: family, last: Some((step, id)) };
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
    fn what_was_chosen_before_it_moved_holds_whatever_its_record_brought() {
        let stage = Stage::new();
        let mut batch = Batch::new();
        put(&stage.shared, &mut batch, (b"k", &record(99, &[(5, Some(8))])), Via::Replica).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let get = || {
            let entry = stage.engine.get(Space::Idempotency, &name(b"k", 5), Wait::No).unwrap();
            let Lookup::Found(entry) = entry else { panic!("it was put") };
            remembered(&name(b"k", 5), &records::from_store(&entry)).unwrap()
        };
        let told = get();
        assert_eq!((told.via, told.ballot, told.time), (Via::Replica, 0, 99));
        let chosen = Remembered { via: Via::Chosen, ballot: 60, ..told };
        let mut batch = Batch::new();
        put_entry(&mut batch, &chosen).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        assert_eq!(get(), chosen);
        let tag = Tag { version: FAMILY, last: Some((20, 5)) };
        let done = Done::Changed { tag, result: Some(8), expiry_ms: 0 };
        assert_eq!(found(&stage, 5), Some(Recalled::Stored { ballot: 60, done }));
        let entry = stage.engine.get(Space::Idempotency, &name(b"k", 5), Wait::No).unwrap();
        let Lookup::Found(entry) = entry else { panic!("it was put") };
        let entry = records::from_store(&entry);
        assert_eq!(remembered(&name(b"k", 4), &entry), None, "it is another one's");
    }

    #[test]
    fn an_entry_that_is_none_is_refused() {
        for value in [&b""[..], &[0; VALUE_LEN - 1], &[0; VALUE_LEN + 7], &[0; VALUE_LEN + 9]] {
            let fields = Fields::new(lsm::Kind::Value, lsm::Version { time: 1, origin: 0 });
            parse(1, &records::new(b"k", &fields, value)).unwrap_err();
        }
    }
}
