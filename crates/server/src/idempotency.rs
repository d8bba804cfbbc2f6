//! Idempotency-key records. When this node stores a conditional write with an idempotency key, it
//! remembers the write for as long as the client may retry it.
//!
//! ```text
//!  Space::Idempotency   key := hash of the user's key u64 │ id u64
//!                       value := base version (time u64, origin u32) │ step u32
//!                                │ ballot u64, if chosen │ sum i64, if any
//!                       extension := 1 u8 │ digest of the client's request u64 │ further ballots
//!                                    u64; empty without a known digest and further ballots
//!                       version := time: the greatest ballot of a record that it was stored with;
//!                                  origin: 0 = the record came from its coordinator,
//!                                  1 = from another replica,
//!                                  2 = chosen: it came with a hint, or the partition's earlier
//!                                      replicas reported it
//! ```
//!
//! An entry is written in the batch of its record, and written again with each ballot under which
//! the node accepts a record whose last write with an idempotency key is this one. A node also
//! receives entries when their partition moves to the node. A compaction purges an entry once it is
//! older than [`IDEMPOTENCY_RETENTION_MICROS`](protocol::IDEMPOTENCY_RETENTION_MICROS): see
//! [`purge_rule`](crate::store::purge_rule).

use bytes::{Buf, Bytes};
use lsm::{Batch, Engine, Fields, Kind, Lookup, ReadMode, Space};
use protocol::{
    AcceptedBallots, MOST_BALLOTS, OpLookup, Record, Remembered, Shared, StoreError, Version, Via,
    WriteIdentity,
};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a value without a ballot and a sum.
const VALUE_LEN: usize = 8 + 4 + 4;

/// First byte of an extension that contains a digest. Earlier releases skip this extension, and
/// this release skips unknown extensions.
const DIGEST: u8 = 1;

/// Approximate size of an entry in a batch, in bytes.
pub(crate) const OPERATION_BYTES: usize = 92;

/// Returns the key of an entry.
pub(crate) fn name(key: &[u8], id: u64) -> Bytes {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&xxh3_64(key).to_be_bytes());
    name[8..].copy_from_slice(&id.to_be_bytes());
    Bytes::copy_from_slice(&name)
}

/// Returns the entries of a record's conditional writes that the node has to store with the record.
pub(crate) fn entries(
    shared: &Shared,
    engine: &Engine,
    (key, record): (&[u8], &Record),
    via: Via,
) -> Result<Vec<Remembered>, lsm::Error> {
    let traces = shared.traces_of(key, record, via);
    let entries = traces.into_iter().map(|entry| merge_into_stored(engine, entry));
    entries.filter_map(Result::transpose).collect()
}

/// Adds the stored entry of the same write to `entry`; `None` = the stored entry stays. If the
/// answer requires the disk, `entry` replaces the stored entry.
fn merge_into_stored(engine: &Engine, entry: Remembered) -> Result<Option<Remembered>, lsm::Error> {
    let name = entry.name();
    let stored = engine.get(Space::Idempotency, &name, ReadMode::NonBlocking)?;
    let Lookup::Found(stored) = stored else { return Ok(Some(entry)) };
    Ok(decode_entry(&name, &stored).map_or(Some(entry), |stored| entry.merge_into(&stored)))
}

/// Adds one entry to a batch.
pub(crate) fn put_entry(batch: &mut Batch, entry: &Remembered) -> Result<(), lsm::Error> {
    let Remembered { time, via, ballots, family, step, result, digest, .. } = *entry;
    let mut value = Vec::with_capacity(VALUE_LEN + 16);
    value.extend_from_slice(&family.time.to_le_bytes());
    value.extend_from_slice(&family.origin.to_le_bytes());
    value.extend_from_slice(&step.to_le_bytes());
    if via == Via::Chosen {
        value.extend_from_slice(&ballots.greatest().to_le_bytes());
    }
    value.extend(result.iter().flat_map(|sum| sum.to_le_bytes()));
    let version = lsm::Version { time, origin: via as u32 };
    let mut extension = vec![DIGEST];
    extension.extend_from_slice(&digest.to_le_bytes());
    // The extension omits the greatest ballot, which is the version's time (`Via::Accept`) or in
    // the value (`Via::Chosen`).
    extension.extend(ballots.iter().skip(1).flat_map(u64::to_le_bytes));
    let is_empty = digest == 0 && ballots.iter().count() <= 1;
    let extension = if is_empty { &[][..] } else { &extension };
    let fields = Fields { extension, ..Fields::new(Kind::Value, version) };
    batch.write(Space::Idempotency, &entry.name(), &fields, &value)
}

/// Decodes the entry with the key `name`; `None` = its checksum does not match, or it is malformed.
pub fn decode_entry(name: &[u8], entry: &Record) -> Option<Remembered> {
    let has_valid_checksum = entry.is_intact(name);
    let (key_hash, id) = name.split_first_chunk().filter(|_| has_valid_checksum)?;
    let name = (u64::from_be_bytes(*key_hash), u64::from_be_bytes(id.try_into().ok()?));
    read(name, entry)
}

fn read((key_hash, id): (u64, u64), entry: &Record) -> Option<Remembered> {
    let mut value = entry.value();
    let Version { time, origin } = entry.version();
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
    let (digest, further) = digest_and_ballots(&entry.extension());
    let ballots = further.iter().filter(|_| via == Via::Accept).chain([ballot]).collect();
    let result = if value.is_empty() { None } else { Some(value.try_get_i64_le().ok()?) };
    let entry = Remembered { key_hash, id, time, via, ballots, family, step, result, digest };
    value.is_empty().then_some(entry)
}

/// Decodes an entry's extension: the digest, 0 = unknown, and the ballots but for the greatest.
fn digest_and_ballots(mut extension: &[u8]) -> (u64, AcceptedBallots) {
    let unknown = (0, AcceptedBallots::NONE);
    match (extension.try_get_u8(), extension.try_get_u64_le(), extension.as_chunks()) {
        (Ok(DIGEST), Ok(digest), (further, [])) if further.len() < MOST_BALLOTS => {
            (digest, further.iter().map(|ballot| u64::from_le_bytes(*ballot)).collect())
        }
        _ => unknown,
    }
}

/// Returns the entry's answer to a retry of its write.
pub(crate) fn parse(asked: WriteIdentity, entry: &Record) -> Result<OpLookup, StoreError> {
    let damaged = || StoreError::Failed {
        begun: false,
        detail: "what is kept of a write with an idempotency key is malformed".to_owned(),
    };
    Ok(read((0, asked.id), entry).ok_or_else(damaged)?.answer_to(asked))
}

#[cfg(test)]
mod tests {
    use protocol::{Done, Operation, Tag};

    use super::*;
    use crate::store::Store;
    use crate::test_node::TestNode;

    const FAMILY: Version = Version { time: 7 << 40, origin: 9 };

    fn record(ballot: u64, operations: &[(u64, Option<i64>)]) -> Record {
        let operation = |&(id, result): &(u64, Option<i64>)| Operation { id, result, digest: 0 };
        let operations: Vec<_> = operations.iter().map(operation).collect();
        changed_record(ballot, &operations)
    }

    fn changed_record(ballot: u64, operations: &[Operation]) -> Record {
        let fields = Fields { ballot, step: 20, operations, ..Fields::new(Kind::Value, FAMILY) };
        Record::new(b"k", &fields, b"v")
    }

    fn put(
        stage: &TestNode,
        batch: &mut Batch,
        record: (&[u8], &Record),
        via: Via,
    ) -> Result<(), lsm::Error> {
        let entries = entries(&stage.shared, &stage.engine, record, via)?;
        entries.iter().try_for_each(|entry| put_entry(batch, entry))
    }

    fn look_up(stage: &TestNode, id: u64) -> Option<OpLookup> {
        let entry =
            stage.engine.get(Space::Idempotency, &name(b"k", id), ReadMode::NonBlocking).unwrap();
        let Lookup::Found(entry) = entry else { return None };
        Some(parse(WriteIdentity { id, digest: 0 }, &entry).unwrap())
    }

    #[test]
    fn writes_with_an_idempotency_key_are_remembered() {
        let stage = TestNode::new();
        let mut batch = Batch::new();
        let record = record(99, &[(4, None), (5, None), (7, Some(-3))]);
        put(&stage, &mut batch, (b"k", &record), Via::Accept).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let stored = |id, step, result| {
            let tag = Tag { version: FAMILY, last: Some((step, id)) };
            Some(OpLookup::Stored {
                ballots: AcceptedBallots::one(99),
                done: Done::Changed { tag, result, expiry_ms: 0, fence: 0 },
            })
        };
        assert_eq!(
            [look_up(&stage, 5), look_up(&stage, 7)],
            [stored(5, 19, None), stored(7, 20, Some(-3))]
        );
        assert_eq!([look_up(&stage, 4), look_up(&stage, 9)], [None, None]);
    }

    #[test]
    fn another_request_with_the_same_idempotency_key_is_detected() {
        let stage = TestNode::new();
        let put_one = |ballot, digest| {
            let operations = [Operation { id: 5, result: None, digest }];
            let record = changed_record(ballot, &operations);
            let mut batch = Batch::new();
            put(&stage, &mut batch, (b"k", &record), Via::Accept).unwrap();
            Store::commit(&stage.engine, batch).unwrap();
        };
        let told = |digest| {
            let entry = stage
                .engine
                .get(Space::Idempotency, &name(b"k", 5), ReadMode::NonBlocking)
                .unwrap();
            let Lookup::Found(entry) = entry else { panic!("it was put") };
            (parse(WriteIdentity { id: 5, digest }, &entry).unwrap(), entry.extension())
        };
        let done = Done::Changed {
            tag: Tag { version: FAMILY, last: Some((20, 5)) },
            result: None,
            expiry_ms: 0,
            fence: 0,
        };
        let stored = |ballot| OpLookup::Stored { ballots: AcceptedBallots::one(ballot), done };
        put_one(99, 0);
        assert_eq!(told(8), (stored(99), Bytes::new()), "without a digest");
        put_one(100, 0x0102_0304_0506_0708);
        assert_eq!(told(8).0, OpLookup::Reused);
        assert_eq!(told(0).0, stored(100), "asked without a digest");
        let (recalled, extension) = told(0x0102_0304_0506_0708);
        assert_eq!((recalled, &extension[..]), (stored(100), &[1, 8, 7, 6, 5, 4, 3, 2, 1][..]));
    }

    /// Stores a record under `ballot` that names operation 5 with step `step`. Returns the ballots
    /// and the step that the node remembers. The process remembers nothing in memory, as after a
    /// restart.
    fn store(stage: &TestNode, (ballot, step): (u64, u32), via: Via) -> (Vec<u64>, Option<u32>) {
        let operations = [Operation { id: 5, result: None, digest: 0 }];
        let fields =
            Fields { ballot, step, operations: &operations, ..Fields::new(Kind::Value, FAMILY) };
        let mut batch = Batch::new();
        let record = Record::new(b"k", &fields, b"v");
        put(stage, &mut batch, (b"k", &record), via).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        match look_up(stage, 5) {
            Some(OpLookup::Stored { ballots, done: Done::Changed { tag, .. } }) => {
                (ballots.iter().collect(), tag.last.map(|(step, _)| step))
            }
            found => panic!("{found:?}"),
        }
    }

    /// The last bits of a ballot tell whether it follows another one without new promises.
    const FRESH: u64 = 64;

    #[test]
    fn a_write_is_remembered_with_each_ballot_under_which_it_was_accepted() {
        let stage = TestNode::new();
        let store = |ballot, step, via| store(&stage, (ballot * FRESH, step), via);
        let told = |ballots: &[u64], step| {
            (ballots.iter().map(|ballot| ballot * FRESH).collect::<Vec<_>>(), Some(step))
        };
        assert_eq!(store(7, 20, Via::Replica), told(&[], 20));
        assert_eq!(store(8, 20, Via::Accept), told(&[8], 20), "an acceptance proves more");
        let other = TestNode::new();
        let store_other = |via| self::store(&other, (FRESH, 20), via);
        assert_eq!(store_other(Via::Replica).0, [0; 0]);
        assert_eq!(store_other(Via::Accept).0, [FRESH], "also of the same record");
        assert_eq!(store(9, 20, Via::Accept), told(&[9, 8], 20), "a majority may have either");
        assert_eq!(store(10, 20, Via::Replica), told(&[9, 8], 20), "a page proves nothing");
        for ballot in 11..=13 {
            store(ballot, 20, Via::Accept);
        }
        assert_eq!(store(13, 20, Via::Accept), told(&[13, 12, 11, 9], 20));
        assert_eq!(store(14, 21, Via::Accept), told(&[14], 21), "the earlier tries were lost");
    }

    #[test]
    fn an_entry_from_a_replica_does_not_count_as_accepted() {
        let stage = TestNode::new();
        let mut batch = Batch::new();
        put(&stage, &mut batch, (b"k", &record(99, &[(5, None)])), Via::Replica).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let tag = Tag { version: FAMILY, last: Some((20, 5)) };
        let done = Done::Changed { tag, result: None, expiry_ms: 0, fence: 0 };
        let stored = OpLookup::Stored { ballots: AcceptedBallots::NONE, done };
        assert_eq!(look_up(&stage, 5), Some(stored));
    }

    #[test]
    fn an_entry_of_a_chosen_write_replaces_the_entry_that_came_with_its_record() {
        let stage = TestNode::new();
        let mut batch = Batch::new();
        put(&stage, &mut batch, (b"k", &record(99, &[(5, Some(8))])), Via::Replica).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        let get = || {
            let entry = stage
                .engine
                .get(Space::Idempotency, &name(b"k", 5), ReadMode::NonBlocking)
                .unwrap();
            let Lookup::Found(entry) = entry else { panic!("it was put") };
            decode_entry(&name(b"k", 5), &entry).unwrap()
        };
        let told = get();
        assert_eq!((told.via, told.ballots, told.time), (Via::Replica, AcceptedBallots::NONE, 98));
        let ballots = AcceptedBallots::one(60);
        let chosen = Remembered { via: Via::Chosen, ballots, ..told };
        let mut batch = Batch::new();
        put_entry(&mut batch, &chosen).unwrap();
        Store::commit(&stage.engine, batch).unwrap();
        assert_eq!(get(), chosen);
        let tag = Tag { version: FAMILY, last: Some((20, 5)) };
        let done = Done::Changed { tag, result: Some(8), expiry_ms: 0, fence: 0 };
        assert_eq!(look_up(&stage, 5), Some(OpLookup::Chosen { done }));
        let entry =
            stage.engine.get(Space::Idempotency, &name(b"k", 5), ReadMode::NonBlocking).unwrap();
        let Lookup::Found(entry) = entry else { panic!("it was put") };
        assert_eq!(decode_entry(&name(b"k", 4), &entry), None, "it is another one's");
    }

    #[test]
    fn a_malformed_entry_is_refused() {
        for value in [&b""[..], &[0; VALUE_LEN - 1], &[0; VALUE_LEN + 7], &[0; VALUE_LEN + 9]] {
            let fields = Fields::new(lsm::Kind::Value, lsm::Version { time: 1, origin: 0 });
            let asked = WriteIdentity { id: 1, digest: 0 };
            parse(asked, &Record::new(b"k", &fields, value)).unwrap_err();
        }
    }
}
