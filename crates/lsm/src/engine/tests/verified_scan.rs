//! Tests of verified scans since a time, compared with a full scan, on random histories and on
//! damaged tables.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ballots::{add_to_model, deep_options, new_record, rank, store};
use super::*;
use crate::disk::{Fault, Op};
use crate::table::file_name;

const TIMES: u64 = 12;
pub(super) const KEYS: u8 = 40;

/// Options with blocks of one or two records.
pub(super) fn tiny(tree_bits: u8) -> Options {
    Options { new_tree_bits: tree_bits, block_bytes: 96, table_bytes: 1024, ..deep_options() }
}

fn naive_scan(engine: &Engine, since: u64) -> Vec<(Vec<u8>, Record)> {
    let mut scan = engine.snapshot().scan(Space::Data, b"", None);
    let mut found = Vec::new();
    while let Some((key, record)) = scan.next().unwrap() {
        if since == 0 || record.write_time() > since {
            found.push((key.to_vec(), record.to_record()));
        }
    }
    found
}

/// Returns all records of a scan that pauses after `bytes` bytes, and continues on a new snapshot.
fn scan_verified(engine: &Engine, since: u64, bytes: u64) -> (Vec<(Vec<u8>, Record)>, ScanCost) {
    let (mut found, mut start, mut progress) = (Vec::new(), Vec::new(), ScanCost::default());
    loop {
        let mut scan = engine.snapshot().verified_scan(Space::Data, &start, None, since);
        scan.pause_after(bytes);
        let paused = loop {
            match scan.next() {
                Some(ScanItem::Record(key, record)) => {
                    found.push((key.to_vec(), record.to_record()));
                }
                Some(ScanItem::Damaged(damaged)) => panic!("{damaged:?}"),
                Some(ScanItem::Pause { next }) => break Some(next),
                None => break None,
            }
        };
        progress.blocks_read += scan.progress().blocks_read;
        progress.blocks_skipped += scan.progress().blocks_skipped;
        progress.tables_skipped += scan.progress().tables_skipped;
        progress.lookups += scan.progress().lookups;
        let Some(next) = paused else { return (found, progress) };
        assert!(next > start, "it comes further");
        start = next;
    }
}

fn check_scans(engine: &Engine) -> ScanCost {
    let mut sum = ScanCost::default();
    let ranks = |found: Vec<(Vec<u8>, Record)>| -> Vec<_> {
        found.into_iter().map(|(key, record)| (key, rank(&record))).collect()
    };
    for since in 0..=TIMES {
        let expected = ranks(naive_scan(engine, since));
        for bytes in [1, 300, u64::MAX] {
            let (found, progress) = scan_verified(engine, since, bytes);
            assert_eq!(ranks(found), expected, "since {since}, by {bytes} bytes");
            sum.blocks_read += progress.blocks_read;
            sum.blocks_skipped += progress.blocks_skipped;
            sum.tables_skipped += progress.tables_skipped;
            sum.lookups += progress.lookups;
        }
    }
    sum
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Write { key: u8, time: u64, ballot: u64, kind: u8, expires: bool },
    Rotate,
    Flush,
    Compact,
    CompactAll,
    Reopen,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let ballot = prop_oneof![3 => Just(0), 2 => 1..=TIMES];
    let write = (0..KEYS, 1..=TIMES, ballot, 0u8..4, any::<bool>());
    prop_oneof![
        24 => write.prop_map(|(key, time, ballot, kind, expires)| {
            Step::Write { key, time, ballot, kind, expires }
        }),
        1 => Just(Step::Rotate),
        2 => Just(Step::Flush),
        2 => Just(Step::Compact),
        1 => Just(Step::CompactAll),
        1 => Just(Step::Reopen),
    ]
}

fn write_one(engine: &Engine, step: (u8, u64, u64, u8, bool)) {
    let (key, time, ballot, kind, expires) = step;
    let kind = [Kind::Value, Kind::Value, Kind::Tombstone, Kind::Superseded][usize::from(kind)];
    let value = if kind == Kind::Value { &[key; 30][..] } else { &[] };
    let fields = Fields {
        ballot,
        step: 1,
        expiry_ms: u64::from(expires && kind == Kind::Value),
        ..Fields::new(kind, version(time))
    };
    store(engine, &[key], &Record::new(&[key], &fields, value));
}

pub(super) fn run(engine: Engine, disk: &MemDisk, options: &Options, steps: Vec<Step>) -> Engine {
    let mut engine = engine;
    for step in steps {
        match step {
            Step::Write { key, time, ballot, kind, expires } => {
                write_one(&engine, (key, time, ballot, kind, expires));
            }
            Step::Rotate => engine.rotate_all(),
            Step::Flush => flush_all(&engine),
            Step::Compact => {
                engine.compact_one().unwrap();
            }
            Step::CompactAll => engine.compact_all().unwrap(),
            Step::Reopen => {
                drop(engine);
                engine = open(disk, options);
            }
        }
    }
    engine
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_scan_since_a_time_equals_a_naive_scan(
        steps in vec(step(), 1..200),
        tree_bits in 0u8..2,
    ) {
        let (disk, options) = (MemDisk::new(), tiny(tree_bits));
        let engine = run(open(&disk, &options), &disk, &options, steps);
        check_scans(&engine);
    }
}

/// A long history exercises every path: skipped blocks, skipped tables, and lookups.
#[test]
fn a_scan_since_a_time_skips_and_looks_up() {
    let (disk, options) = (MemDisk::new(), tiny(0));
    let engine = open(&disk, &options);
    let mut random = Random(77);
    for round in 0..800_u64 {
        let now = 1 + round * TIMES / 800;
        let ballot = if random.below(3) == 0 { now } else { 0 };
        let time = if ballot > 0 { 1 + random.below(now) } else { now };
        write_one(&engine, (random.below(40) as u8, time, ballot, random.below(4) as u8, false));
        if round % 50 == 49 {
            engine.rotate_all();
            while engine.flush_one().unwrap() == StepOutcome::Done {}
            engine.compact_one().unwrap();
        }
    }
    let sum = check_scans(&engine);
    let figures = [sum.blocks_read, sum.blocks_skipped, sum.tables_skipped, sum.lookups];
    assert!(figures.iter().all(|figure| *figure > 5), "{sum:?}");
}

/// A record that the scan reads has the old version of the record that it continues, and a recent
/// ballot. A skipped record has a newer version but an older write time, so it outranks the other.
#[test]
fn a_record_outranked_by_a_skipped_one_is_not_returned() {
    let (disk, options) = (MemDisk::new(), tiny(0));
    let engine = open(&disk, &options);
    for (time, ballot) in [(5, 0), (3, 9)] {
        for key in 0..KEYS {
            store(&engine, &[key], &new_record(&[key], time, ballot, Kind::Value, b"v"));
        }
        engine.rotate_all();
        engine.flush_one().unwrap();
        if ballot == 0 {
            while engine.compact_one().unwrap() == StepOutcome::Done {}
        }
    }
    let (found, progress) = scan_verified(&engine, 6, u64::MAX);
    assert_eq!(found.len(), 0, "the newest of each key was written at 5");
    assert_eq!(progress.lookups, u64::from(KEYS));
    assert!(progress.tables_skipped > 0);
}

/// A scan covers exactly its range, in each space, and reads no other blocks.
#[test]
fn a_range_of_a_space_reads_no_other_blocks() {
    let (disk, options) = (MemDisk::new(), tiny(0));
    let engine = open(&disk, &options);
    for space in [Space::Data, Space::Hints, Space::Node] {
        for key in 0..200_u8 {
            let mut batch = Batch::new();
            batch.put(space, &[key], version(u64::from(key) + 1), &[key; 30]).unwrap();
            engine.commit(std::iter::once(&batch)).unwrap();
        }
    }
    engine.rotate_all();
    engine.flush_one().unwrap();
    for space in [Space::Data, Space::Hints, Space::Node] {
        let mut scan = engine.snapshot().verified_scan(space, &[50], Some(&[60]), 0);
        let mut keys = Vec::new();
        while let Some(ScanItem::Record(key, record)) = scan.next() {
            assert_eq!(record.value(), &[key[0]; 30]);
            keys.push(key[0]);
        }
        assert_eq!(keys, (50..60).collect::<Vec<u8>>());
        let progress = scan.progress();
        assert!((5..=12).contains(&progress.blocks_read), "{progress:?}");
    }
}

/// A store with two levels of tables, and its model.
pub(super) fn store_of_tables(disk: &MemDisk, options: &Options) -> (Engine, Model) {
    let (engine, mut model) = (open(disk, options), Model::new());
    for (round, time) in [3, 5, 8].into_iter().enumerate() {
        for key in (0..KEYS).filter(|key| round == 0 || usize::from(*key) % 3 == round) {
            let record = new_record(&[key], time, 0, Kind::Value, &[key; 20]);
            store(&engine, &[key], &record);
            add_to_model(&mut model, &[key], record);
        }
        engine.rotate_all();
        engine.flush_one().unwrap();
        if round == 0 {
            engine.compact_all().unwrap();
        }
    }
    (engine, model)
}

/// Scans a damaged store and returns the damaged ranges. Asserts that the scan returns every key
/// outside these ranges with its newest record.
pub(super) fn scan_damaged(engine: &Engine, model: &Model, since: u64) -> Vec<Damaged> {
    let mut scan = engine.snapshot().verified_scan(Space::Data, b"", None, since);
    let (mut reported, mut found) = (Vec::<Damaged>::new(), Model::new());
    let is_reported = |reported: &[Damaged], key: &[u8]| {
        let within =
            |d: &Damaged| &d.first[..] <= key && d.last.as_ref().is_none_or(|l| key <= &l[..]);
        reported.iter().any(within)
    };
    while let Some(item) = scan.next() {
        match item {
            ScanItem::Damaged(damaged) => reported.push(damaged),
            ScanItem::Record(key, record) => {
                let is_newest = rank(&record.to_record()) == rank(&model[key]);
                assert!(
                    is_newest || is_reported(&reported, key),
                    "{key:?} is old, and nothing was reported"
                );
                found.insert(key.to_vec(), record.to_record());
            }
            ScanItem::Pause { .. } => panic!("nobody asked for that"),
        }
    }
    for (key, record) in model.iter().filter(|(_, record)| record.view().write_time() > since) {
        let is_found = found.get(key).is_some_and(|found| rank(found) == rank(record));
        assert!(
            is_found || is_reported(&reported, key),
            "{key:?} is missing, and nothing was reported"
        );
    }
    reported
}

/// A full scan detects damage to any byte of any table, although all blocks are cached, and
/// continues after the damage.
#[test]
fn damage_is_reported_with_its_keys_and_the_scan_continues() {
    let (disk, options) = (MemDisk::new(), Options { bloom_bits: 10, ..tiny(0) });
    let (engine, model) = store_of_tables(&disk, &options);
    check(&engine, &model);
    let tables: Vec<_> = engine
        .core
        .trees
        .tree(0)
        .load_full()
        .levels
        .iter()
        .flatten()
        .map(|t| t.meta().clone())
        .collect();
    assert!(tables.len() > 3);
    assert_eq!(scan_damaged(&engine, &model, 0).len(), 0);
    let mut narrow = 0;
    for meta in &tables {
        let name = file_name(meta.id);
        let bytes = disk.file(&name).unwrap();
        let footer = &bytes[bytes.len() - 72..];
        let blocks_end = u64::from_le_bytes(footer[..8].try_into().unwrap());
        for byte in (0..blocks_end).step_by(3) {
            disk.flip_bit(&name, byte * 8 + byte % 8);
            let reported = scan_damaged(&engine, &model, 0);
            disk.flip_bit(&name, byte * 8 + byte % 8);
            let [damaged] = &reported[..] else { panic!("byte {byte} of {name}: {reported:?}") };
            assert_eq!(damaged.table, Some(meta.id));
            assert!(matches!(damaged.error, Error::Corrupt { .. }));
            assert!(damaged.last.as_deref().unwrap() <= &meta.largest[1..]);
            let keys = model.keys().filter(|key| {
                **key >= damaged.first && damaged.last.as_ref().is_none_or(|last| *key <= last)
            });
            narrow += usize::from(keys.count() <= 4);
        }
    }
    assert!(narrow > 100, "a data block takes its own keys only: {narrow}");
    check(&engine, &model);
}

#[test]
fn an_unreadable_block_is_reported_and_its_neighbours_are_read() {
    let options = tiny(0);
    let disk = MemDisk::new();
    let (engine, model) = store_of_tables(&disk, &options);
    for since in [0, 4] {
        for after in 0..20 {
            // Two faults: for the read, and for its retry.
            disk.fail(Fault::once(Op::Read, 5).suffix(".sst").after(after));
            disk.fail(Fault::once(Op::Read, 5).suffix(".sst").after(after));
            let reported = scan_damaged(&engine, &model, since);
            assert!(reported.iter().all(|damaged| matches!(damaged.error, Error::Io { .. })));
            disk.clear_faults();
        }
    }
    disk.fail(Fault::forever(Op::Read, 5).suffix(".sst"));
    let reported = scan_damaged(&engine, &model, 0);
    assert!(reported.len() > 2, "each table is reported once: {}", reported.len());
    disk.clear_faults();
    assert_eq!(scan_damaged(&engine, &model, 0).len(), 0);
}
