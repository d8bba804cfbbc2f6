//! Tests of tables: writes with various parameters, reads of every key and position.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::disk::{Disk, MemDisk};
use crate::table::index::read_index;
use record::{Fields, Kind, Operation, Record, RecordRef, Version};

mod damage;

const STORE: u64 = 0x5709_e1d5;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Items = Vec<(Vec<u8>, Vec<u8>)>;

fn params(table_id: u64) -> TableParams {
    TableParams { table_id, store_id: STORE, block_bytes: 512, bloom_bits: 10, compress: true }
}

fn record(key: &[u8], time: u64, value: &[u8]) -> Vec<u8> {
    let kind = if value.is_empty() { Kind::Tombstone } else { Kind::Value };
    let version = Version { time, origin: 7 };
    Record::new(&key[1..], &Fields::new(kind, version), value).view().raw().to_vec()
}

/// `len` keys that share prefixes, with values of up to `max_value` bytes.
fn model(len: u64, max_value: usize) -> Model {
    let mut state = 1u64;
    (0..len)
        .map(|i| {
            state = xxh3_64(&state.to_le_bytes());
            let key = format!("\0user/{:03}/{:05}", i / 40, i * 3).into_bytes();
            let value = vec![state as u8; (state >> 8) as usize % (max_value + 1)];
            let raw = record(&key, i + 1, &value);
            (key, raw)
        })
        .collect()
}

fn write(params: TableParams, model: &Model) -> (Vec<u8>, TableMeta) {
    let disk = MemDisk::new();
    let mut writer = TableWriter::create(&disk, params).unwrap();
    for (key, raw) in model {
        writer.add(key, raw).unwrap();
    }
    let meta = writer.finish().unwrap();
    (disk.file(&file_name(params.table_id)).unwrap(), meta)
}

fn file_of(bytes: Vec<u8>) -> Arc<dyn File> {
    let disk = MemDisk::new();
    disk.put_file("table", bytes);
    disk.open("table").unwrap()
}

fn open(bytes: Vec<u8>, meta: &TableMeta, cache_bytes: usize) -> Result<Arc<Table>, Error> {
    let cache = Arc::new(BlockCache::new(cache_bytes));
    Table::open(file_of(bytes), meta, STORE, cache).map(Arc::new)
}

fn get(table: &Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
    match table.get(key, xxh3_64(&key[1..]), ReadMode::Blocking)? {
        TableGet::Found(raw) => Ok(Some(raw)),
        TableGet::Absent => Ok(None),
        TableGet::WouldBlock | TableGet::TooLong(_) => {
            panic!("a read that may wait and take what it needs was not done")
        }
    }
}

fn rest(iter: &mut TableIter) -> Result<Items, Error> {
    let mut items = Vec::new();
    while iter.valid() {
        items.push((iter.key().to_vec(), iter.record().to_vec()));
        iter.next()?;
    }
    Ok(items)
}

fn all(table: &Arc<Table>, access: Access) -> Result<Items, Error> {
    let mut iter = TableIter::new(table.clone(), access);
    iter.seek_to_first()?;
    rest(&mut iter)
}

/// Checks every key, every gap between two keys and every position, with each way of reading.
fn check_against(table: &Arc<Table>, model: &Model) {
    let items: Vec<_> = model.clone().into_iter().collect();
    for access in [Access::Cached, Access::Sequential] {
        assert_eq!(all(table, access).unwrap(), items);
    }
    let mut iter = TableIter::new(table.clone(), Access::Cached);
    for key in model.keys() {
        assert_eq!(get(table, key).unwrap().as_deref(), model.get(key).map(Vec::as_slice));
        let mut after = key.clone();
        after.push(0);
        let mut before = key.clone();
        before.pop();
        for probe in [key, &after, &before] {
            if !probe.is_empty() {
                let expected = model.get(probe).map(Vec::as_slice);
                assert_eq!(get(table, probe).unwrap().as_deref(), expected);
            }
            iter.seek(probe).unwrap();
            let found = iter.valid().then(|| (iter.key(), iter.record()));
            let expected = model.range(probe.clone()..).next();
            assert_eq!(found, expected.map(|(k, r)| (k.as_slice(), r.as_slice())));
        }
    }
}

#[test]
fn written_records_are_read_back_with_any_parameters() {
    let model = model(2_000, 300);
    for block_bytes in [64, 512, 4096, 65536] {
        for (bloom_bits, compress, cache) in [(0, true, 1 << 20), (10, false, 0), (20, true, 4000)]
        {
            let params = TableParams { block_bytes, bloom_bits, compress, ..params(3) };
            let (bytes, meta) = write(params, &model);
            check_against(&open(bytes, &meta, cache).unwrap(), &model);
        }
    }
}

#[test]
fn the_meta_describes_the_table() {
    let mut model = model(1_000, 3);
    let of_the_node = b"\x02id".to_vec();
    model.insert(of_the_node.clone(), record(&of_the_node, 1, b"not a user's"));
    let (bytes, meta) = write(params(5), &model);
    let is_tombstone = |raw: &&Vec<u8>| raw[2] & 3 == Kind::Tombstone as u8;
    let is_user = |key: &Vec<u8>| key[0] == Space::Data as u8;
    let users = || model.iter().filter(|(key, _)| is_user(key)).map(|(_, raw)| raw);
    let tombstones = users().filter(is_tombstone).count();
    let values = users().count() - tombstones;
    assert!(tombstones > 0 && values > 0 && tombstones + values == 1_000);
    assert_eq!((meta.id, meta.bytes), (5, bytes.len() as u64));
    assert_eq!((meta.entries, meta.values), (1_001, values as u64));
    assert_eq!(meta.deleted.records, tombstones as u64);
    assert_eq!(meta.smallest, model.keys().next().unwrap()[..]);
    assert_eq!(meta.largest, model.keys().next_back().unwrap()[..]);
    assert_eq!(meta.max_version, Version { time: 1_000, origin: 7 });
    assert_eq!((meta.min_write_time, meta.max_write_time), (1, 1_000));
}

#[test]
fn long_records_get_a_block_of_their_own_and_are_read_back() {
    let mut model = model(100, 50);
    for (i, len) in [300, 3_000, 70_000, 1 << 20, 16 * 1024 * 1024 - 24].into_iter().enumerate() {
        let key = format!("\0user/001/{:05}x", i * 30).into_bytes();
        let noise: Vec<u8> =
            (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        let raw = record(&key, 1, &noise);
        model.insert(key, raw);
    }
    for compress in [false, true] {
        let params = TableParams { compress, ..params(1) };
        let (bytes, meta) = write(params, &model);
        check_against(&open(bytes, &meta, 1 << 20).unwrap(), &model);
    }
}

#[test]
fn the_estimate_of_bytes_written_is_close() {
    let disk = MemDisk::new();
    let mut writer = TableWriter::create(&disk, params(1)).unwrap();
    for (key, raw) in &model(3_000, 200) {
        writer.add(key, raw).unwrap();
    }
    let estimate = writer.bytes_written();
    let bytes = writer.finish().unwrap().bytes;
    assert!(estimate <= bytes + 512 && bytes <= estimate + estimate / 20 + 16_384);
}

#[test]
fn a_filter_skips_most_absent_keys_and_counts_them() {
    let model = model(3_000, 100);
    let (bytes, meta) = write(params(1), &model);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::open(file_of(bytes), &meta, STORE, cache.clone()).unwrap();
    for i in 0..3_000 {
        let key = format!("\0user/{:03}/{:05}", i / 40, i * 3 + 1).into_bytes();
        assert_eq!(get(&table, &key).unwrap(), None);
    }
    assert!(cache.bloom_skips() > 2_900, "{} skips", cache.bloom_skips());
    let partly_in_range = cache.bloom_skips() + cache.bloom_false_positives();
    assert!((2_900..=3_000).contains(&partly_in_range), "{partly_in_range} asked a filter");
}

#[test]
fn a_nonblocking_read_reports_when_it_would_block() {
    let mut model = model(200, 100);
    let large = b"\0large".to_vec();
    model.insert(large.clone(), record(&large, 1, &vec![0; INLINE_MAX]));
    let huge = b"\0user/huge".to_vec();
    model.insert(huge.clone(), record(&huge, 1, &vec![0; 1 << 20]));
    let (bytes, meta) = write(params(1), &model);
    let disk = MemDisk::new();
    disk.put_file("table", bytes);
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::open(disk.open("table").unwrap(), &meta, STORE, cache).unwrap();
    let try_get = |key: &[u8]| table.get(key, xxh3_64(&key[1..]), ReadMode::NonBlocking).unwrap();
    let key = b"\0user/000/00003";
    disk.set_cold(true);
    assert_eq!(try_get(key), TableGet::WouldBlock);
    assert_eq!(try_get(b"\0zzz"), TableGet::Absent);
    disk.set_cold(false);
    assert_eq!(try_get(key), TableGet::Found(model[&key[..]].clone().into()));
    disk.set_cold(true);
    assert_eq!(try_get(key), TableGet::Found(model[&key[..]].clone().into()), "it is cached");
    disk.set_cold(false);
    assert_eq!(try_get(&large), TableGet::WouldBlock);
    assert_eq!(try_get(&huge), TableGet::WouldBlock);
    assert_eq!(get(&table, &huge).unwrap().as_deref(), Some(&model[&huge][..]));
}

#[test]
fn a_long_record_is_read_only_within_the_memory_limit() {
    let mut model = model(200, 100);
    let small = b"\0user/000/00003".to_vec();
    let noise = (0..1u64 << 17).flat_map(|n| xxh3_64(&n.to_le_bytes()).to_le_bytes());
    let raw = b"\0user/raw".to_vec();
    model.insert(raw.clone(), record(&raw, 1, &noise.collect::<Vec<_>>()));
    let packed = b"\0user/packed".to_vec();
    model.insert(packed.clone(), record(&packed, 1, &vec![0; 1 << 20]));
    let (bytes, meta) = write(params(1), &model);
    let table = open(bytes, &meta, 1 << 20).unwrap();
    let within =
        |key: &[u8], room| table.get(key, xxh3_64(&key[1..]), ReadMode::Limited(room)).unwrap();
    assert_eq!(within(&small, 0), TableGet::Found(model[&small].clone().into()));
    for (key, least, most) in [(&raw, 1 << 20, (1 << 20) + 100), (&packed, 1 << 20, 1100 << 10)] {
        let TableGet::TooLong(bytes) = within(key, 0) else { panic!("there was no room") };
        assert!((least..most).contains(&bytes), "{bytes} bytes");
        assert_eq!(within(key, bytes - 1), TableGet::TooLong(bytes));
        assert_eq!(within(key, bytes), TableGet::Found(model[key].clone().into()));
    }
}

#[test]
fn compactions_bypass_the_block_cache() {
    let model = model(2_000, 100);
    let (bytes, meta) = write(params(1), &model);
    let cache = Arc::new(BlockCache::new(8 << 20));
    let table = Arc::new(Table::open(file_of(bytes), &meta, STORE, cache.clone()).unwrap());
    all(&table, Access::Sequential).unwrap();
    let after_compaction = cache.bytes();
    all(&table, Access::Cached).unwrap();
    let after_scan = cache.bytes();
    assert!(after_compaction < meta.bytes / 8, "{after_compaction} bytes are cached");
    assert!(after_scan > meta.bytes / 2, "only {after_scan} bytes are cached");
}

#[test]
#[should_panic(expected = "keys do not ascend")]
fn keys_out_of_order_panic() {
    let disk = MemDisk::new();
    let mut writer = TableWriter::create(&disk, params(1)).unwrap();
    let raw = record(b"\0k", 1, b"v");
    writer.add(b"\0k", &raw).unwrap();
    let _ = writer.add(b"\0k", &raw);
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Checks a table that a release wrote, as its manifest describes it.
fn check_fixture(name: &str, meta: &TableMeta, model: &Model) {
    let bytes = fixture(name);
    let check = u64::from_le_bytes(*bytes.last_chunk().unwrap());
    let meta = TableMeta { bytes: bytes.len() as u64, check, ..meta.clone() };
    check_against(&open(bytes.clone(), &meta, 0).unwrap(), model);
    let other = PurgeableSummary { records: meta.deleted.records + 1, ..meta.deleted };
    for wrong_meta in [
        TableMeta { min_write_time: 2, ..meta.clone() },
        TableMeta { max_write_time: meta.max_write_time - 1, ..meta.clone() },
        TableMeta { deleted: other, ..meta.clone() },
        TableMeta { expiring: other, ..meta.clone() },
    ] {
        assert!(open(bytes.clone(), &wrong_meta, 0).is_err(), "{name} by other figures");
    }
}

/// Tables of every release must stay readable, and the written bytes must not change by accident.
/// (The compressed bytes are not compared, because LZ4 may find other matches in the same format.)
/// Set `KVORUM_WRITE_FIXTURES` to rewrite the fixtures after a change of the format version.
#[test]
fn tables_match_the_format_of_the_fixtures() {
    let mut model = model(60, 40);
    let large = b"\x02large".to_vec();
    model.insert(large.clone(), record(&large, 1 << 40, &[b'x'; 600]));
    let params = TableParams { block_bytes: 256, compress: false, ..params(77) };
    let operation = |id, result| Operation { id, result, digest: 0 };
    let operations = [operation(7, Some(-1)), operation(8, None)];
    let plain = Fields::new(Kind::Value, Version { time: 9, origin: 7 });
    let fields = Fields { ballot: 1 << 41, step: 3, operations: &operations, ..plain.clone() };
    let mut insert = |key: &[u8], fields: &Fields<'_>, value: &[u8]| {
        let raw = Record::new(&key[1..], fields, value).view().raw().to_vec();
        model.insert(key.to_vec(), raw);
        write(params, &model)
    };
    let (_, meta) = insert(b"\0counter", &fields, b"41");
    assert_eq!((meta.min_write_time, meta.max_write_time), (1, 1 << 41));
    let (_, before) = insert(b"\0expires", &Fields { expiry_ms: 1, ..plain.clone() }, b"v");
    let superseded = Fields { kind: Kind::Superseded, ..plain };
    let (bytes, meta) = insert(b"\0superseded", &superseded, b"");
    assert_eq!((meta.deleted.records, meta.deleted.latest), (before.deleted.records + 1, 57));
    assert_eq!(meta.values, before.values);
    assert_eq!((meta.expiring.records, meta.expiring.latest), (1, 1000 << 12));
    let (lz4, _) = write(TableParams { compress: true, ..params }, &model);
    if std::env::var_os("KVORUM_WRITE_FIXTURES").is_some() {
        for (name, bytes) in [("table-v1-raw.sst", &bytes), ("table-v1-lz4.sst", &lz4)] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
            std::fs::write(directory.join(name), bytes).unwrap();
        }
    }
    let same = bytes == fixture("table-v1-raw.sst");
    assert!(same, "the bytes of a table changed; is it a new format version?");
    for name in ["table-v1-raw.sst", "table-v1-lz4.sst"] {
        check_fixture(name, &meta, &model);
    }
}

/// The time of a record is the later of its version time and its ballot.
#[test]
fn the_index_stores_the_latest_time_of_each_block() {
    let mut model = Model::new();
    for i in 0..400_u64 {
        let (time, ballot) = [(i, 0), (7, i), (i, 7)][i as usize % 3];
        let fields =
            Fields { ballot, step: 1, ..Fields::new(Kind::Value, Version { time, origin: 7 }) };
        let key = format!("\0key{i:04}").into_bytes();
        let value = vec![1; if i % 50 == 0 { 2_000 } else { i as usize % 90 }];
        model.insert(key.clone(), Record::new(&key[1..], &fields, &value).view().raw().to_vec());
    }
    let (bytes, meta) = write(params(1), &model);
    let table = open(bytes, &meta, 0).unwrap();
    let (mut blocks, mut entries) = (0, model.iter());
    for number in 0..table.top.partitions.len() {
        let partition = read_index(&table, number).unwrap();
        for block in &partition.blocks {
            let Ok(content) = table.read_block(block.handle, ReadMode::Blocking) else { panic!() };
            let (mut cursor, mut latest) = (Cursor::default(), 0);
            cursor.set_block(content).unwrap();
            cursor.seek_to_first().unwrap();
            while cursor.valid() {
                assert_eq!(entries.next().unwrap().0, cursor.key());
                latest = latest.max(RecordRef::parse(cursor.value()).unwrap().latest());
                cursor.next().unwrap();
            }
            assert_eq!(block.latest, latest);
            blocks += 1;
        }
    }
    assert!(blocks > 20 && entries.next().is_none());
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just(b"".to_vec()),
        Just(b"a".to_vec()),
        Just(b"shared-prefix-of-some-length".to_vec()),
        Just(vec![0]),
        Just(vec![255; 3]),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    (0u8..3, proptest::collection::vec(part, 0..4)).prop_map(|(space, parts)| {
        let mut key = vec![space];
        key.extend(parts.concat());
        key
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_keys_and_values_are_read_back(
        items in proptest::collection::btree_map(keys(), (any::<u8>(), 0usize..700), 1..150),
        block_bytes in 32usize..2048,
        bloom_bits in 0u8..=20,
        compress: bool,
        probes in proptest::collection::vec(keys(), 20),
    ) {
        let model: Model = items
            .into_iter()
            .map(|(key, (byte, len))| {
                let raw = record(&key, u64::from(byte), &vec![byte; len]);
                (key, raw)
            })
            .collect();
        let params = TableParams { block_bytes, bloom_bits, compress, ..params(1) };
        let (bytes, meta) = write(params, &model);
        let table = open(bytes, &meta, 16 << 10).unwrap();
        check_against(&table, &model);
        for probe in &probes {
            let found = get(&table, probe).unwrap();
            prop_assert_eq!(found.as_deref(), model.get(probe).map(|raw| &raw[..]));
        }
    }
}
