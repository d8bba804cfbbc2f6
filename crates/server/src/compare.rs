//! Sums or lists this node's records of a key range, for a repair round, whose driver compares the
//! sums of all nodes. Reads every block from the disk, verifies it, and reports damage.
//!
//! A comparison opens a scan of its own, stops after a bounded amount of work, and returns the key
//! at which the next comparison of the range continues.

use crate::store::store_error;
use bytes::Bytes;
use lsm::{Discarded, Engine, KeyRange, PurgeRule, ScanItem, Space};
use protocol::{
    CompareRequest, Compared, Damage, Detail, Kind, MAX_DAMAGED, Shared, StoreError, Sums,
};

/// Limit on the records in one comparison.
const MAX_RECORDS: u64 = 64 << 10;

/// Limit on the bytes read and processed in one comparison: tens of milliseconds of work. Some of
/// the bytes may lie in blocks without a matching record.
const MAX_BYTES: u64 = 4 << 20;

/// Factor by which a range with an end may exceed the limits. Another node chose the end within the
/// limits, and this node has about as many records in the range.
const SLACK: u64 = 2;

/// Longest list, in bytes of keys and outlines.
const MAX_LIST_BYTES: usize = 256 << 10;

/// Approximate size of an outline, in bytes.
const OUTLINE_BYTES: usize = 40;

/// Reads and summarizes a range. Waits for the disk.
pub fn compare(
    engine: &Engine,
    shared: &Shared,
    request: &CompareRequest,
) -> Result<Compared, StoreError> {
    let view = shared.view();
    let topology = &view.topology;
    let CompareRequest { start, end, since, until, round: _, watermark, detail } = request;
    let slack = if end.is_some() { SLACK } else { 1 };
    let snapshot = engine.snapshot();
    let mut scan = snapshot.verified_scan(Space::Data, start, end.as_deref(), *since);
    scan.pause_after(MAX_BYTES * slack);
    let mut sums = Sums::new(topology, shared.own);
    let mut compared = Compared::default();
    let (mut processed_bytes, mut list_bytes) = (0, 0);
    while let Some(item) = scan.next() {
        let (key, record) = match item {
            ScanItem::Record(key, record) => (key, record),
            ScanItem::Damaged(damaged) => {
                tracing::warn!(error = %damaged.error, "a repair round found damaged data");
                add_damage(&mut compared.damaged, damaged.first.into(), damaged.last);
                continue;
            }
            ScanItem::Pause { next } => {
                compared.next = Some(next.into());
                break;
            }
        };
        let is_over = match detail {
            Detail::Sums => {
                compared.records >= MAX_RECORDS * slack || processed_bytes >= MAX_BYTES * slack
            }
            Detail::Outlines { max_bytes, .. } => {
                list_bytes >= MAX_LIST_BYTES.min(*max_bytes as usize)
                    || processed_bytes >= MAX_BYTES * slack
            }
        };
        if is_over && compared.records > 0 {
            compared.next = Some(Bytes::copy_from_slice(key));
            break;
        }
        processed_bytes += (key.len() + record.raw().len()) as u64;
        compared.records += 1;
        if record.write_time() > *until {
            if record.version().time <= *until {
                sums.count_unsummed(key);
            }
            continue;
        }
        let is_purgeable = PurgeRule::is_purgeable_at(record, *watermark);
        let outline = record.outline();
        match detail {
            // Replicas purge at different times, so a sum leaves out what they may purge.
            Detail::Sums if is_purgeable => {}
            // A tombstone may hide a record on another node.
            Detail::Outlines { .. } if is_purgeable && outline.rank.kind == Kind::Value => {}
            Detail::Sums => sums.add(key, &outline.rank, outline.copies),
            Detail::Outlines { buckets, .. } => {
                let bucket = topology.buckets().of(key);
                if buckets.is_empty() || buckets.binary_search(&bucket).is_ok() {
                    list_bytes += key.len() + OUTLINE_BYTES;
                    compared.outlines.push((Bytes::copy_from_slice(key), outline));
                }
            }
        }
    }
    if matches!(detail, Detail::Sums) {
        compared.sums = sums.end();
    }
    compared.bytes_read = scan.progress().bytes_read;
    Ok(compared)
}

/// Discards unreadable blocks in these key ranges. The other replicas' records of the ranges must
/// have been written here before. Waits for the disk.
pub fn discard(engine: &Engine, ranges: &[Damage]) -> Result<Option<u64>, StoreError> {
    let range = |damage: &Damage| KeyRange {
        first: damage.first.to_vec(),
        last: damage.last.as_ref().map(|last| last.to_vec()),
    };
    let ranges: Vec<KeyRange> = ranges.iter().map(range).collect();
    match engine.discard(Space::Data, &ranges) {
        Ok(discarded) if discarded.left == 0 => Ok(None),
        Ok(Discarded { left, .. }) => {
            tracing::error!(
                tables = left,
                "damage was healed in part only: it reaches beyond these keys, into other keys or \
                 what the node keeps for itself; what cannot be read is still an error"
            );
            let detail = "a table has damage that was not healed".to_owned();
            Err(StoreError::Failed { begun: false, detail })
        }
        Err(error) => {
            tracing::error!(%error, "damage was healed, but the store could not give it up");
            Err(store_error(&error))
        }
    }
}

/// Adds a damaged range; after `MAX_DAMAGED` ranges, extends the last range instead.
fn add_damage(damaged: &mut Vec<Damage>, first: Bytes, last: Option<Vec<u8>>) {
    let last = last.map(Bytes::from);
    if damaged.len() < MAX_DAMAGED {
        damaged.push(Damage { first, last });
    } else if let Some(known) = damaged.last_mut() {
        known.last = match (known.last.take(), last) {
            (Some(known), Some(last)) => Some(known.max(last)),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use lsm::{Batch, Disk, StepOutcome, Version};
    use protocol::RoundId;

    use super::*;
    use crate::store::Store;
    use crate::test_node::TestNode;

    fn sums(stage: &TestNode, watermark: u64) -> Compared {
        let (start, end, since, until) = (Bytes::new(), None, 0, u64::MAX);
        let (round, detail) = (RoundId::default(), Detail::Sums);
        let request = CompareRequest { start, end, since, until, round, watermark, detail };
        compare(&stage.engine, &stage.shared, &request).unwrap()
    }

    fn commit(stage: &TestNode, fill: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        fill(&mut batch);
        Store::commit(&stage.engine, batch).unwrap();
    }

    /// Replicas need not purge at the same time.
    #[test]
    fn purgeable_records_are_in_no_sum() {
        let at = |time| Version { time, origin: 1 };
        let [kept, purged] = [TestNode::new(), TestNode::new()];
        for stage in [&kept, &purged] {
            commit(stage, |batch| batch.put(Space::Data, b"value", at(5), b"v").unwrap());
        }
        commit(&kept, |batch| batch.delete(Space::Data, b"deleted", at(7)).unwrap());
        assert_eq!(sums(&kept, 7).sums, sums(&purged, 7).sums);
        assert_ne!(sums(&kept, 6).sums, sums(&purged, 6).sums, "not up to that watermark");
    }

    /// A record with an older version and a newer ballot is not compared. A record of another node,
    /// which is compared, may hide it.
    #[test]
    fn records_that_continue_an_older_base_version_are_counted() {
        let stage = TestNode::new();
        let fields = |time| lsm::Fields {
            ballot: 9,
            step: 1,
            ..lsm::Fields::new(lsm::Kind::Value, lsm::Version { time, origin: 1 })
        };
        let told = |until| {
            let (start, end, round) = (Bytes::new(), None, RoundId::default());
            let (since, watermark, detail) = (0, 0, Detail::Sums);
            let request = CompareRequest { start, end, since, until, round, watermark, detail };
            let told = compare(&stage.engine, &stage.shared, &request).unwrap().sums;
            told.iter().filter(|sum| sum.copies == 0).map(|sum| sum.sum).sum::<u128>()
        };
        commit(&stage, |batch| batch.write(Space::Data, b"a", &fields(5), b"v").unwrap());
        commit(&stage, |batch| batch.write(Space::Data, b"b", &fields(8), b"v").unwrap());
        assert_eq!([4, 7, 8, 9].map(told), [0, 1, 2, 0]);
    }

    /// A sum without the record would equal the sum of a replica that never stored the record.
    #[test]
    fn unreadable_records_are_reported() {
        let stage = TestNode::new();
        let version = Version { time: 5, origin: 1 };
        commit(&stage, |batch| batch.put(Space::Data, b"k", version, b"value").unwrap());
        assert_eq!(sums(&stage, 0).damaged, []);
        stage.engine.rotate_all();
        assert_eq!(stage.engine.flush_one().unwrap(), StepOutcome::Done);
        let names = stage.disk.list().unwrap();
        let table = names.iter().find(|name| name.ends_with(".sst")).unwrap();
        // Within the first block.
        assert!(stage.disk.flip_bit(table, 300));
        let told = sums(&stage, 0);
        let first = told.damaged.first().expect("it is told");
        assert!(first.first <= b"k"[..] && told.records == 0, "{told:?}");
    }
}
