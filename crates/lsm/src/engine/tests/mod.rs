//! Tests of the engine, step by step on a disk in memory: the engine equals a sorted map, in every
//! order of writes, flushes, compactions and restarts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commit_state::log_bound;
use super::internal_key::hash_of;
use super::*;
use crate::disk::{Disk, MemDisk};
use crate::options::SyncMode;
use record::{Fields, Kind};

mod ballots;
mod discard;
mod expiry;
mod orphans;
mod purge;
mod store_format;
mod verified_scan;

type Model = BTreeMap<Vec<u8>, Record>;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

fn small_options() -> Options {
    Options {
        new_store_id: 77,
        new_tree_bits: 1,
        memtable_bytes: 64 << 10,
        cache_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        block_bytes: 512,
        table_bytes: 32 << 10,
        level0_tables: 2,
        level1_bytes: 64 << 10,
        level_ratio: 4,
        ..Options::default()
    }
}

fn open(disk: &MemDisk, options: &Options) -> Engine {
    Engine::open(Arc::new(disk.clone()), options.clone()).unwrap()
}

fn version(time: u64) -> Version {
    Version { time, origin: 1 }
}

fn write(engine: &Engine, model: &mut Model, key: &[u8], kind: Kind, time: u64, value: &[u8]) {
    let fields = Fields::new(kind, version(time));
    let mut batch = Batch::new();
    batch.write(Space::Data, key, &fields, value).unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
    let record = Record::new(key, &fields, value);
    let held = model.entry(key.to_vec()).or_insert_with(|| record.clone());
    if record.view().order(&held.view()).is_gt() {
        *held = record;
    }
}

fn same(found: &FoundRecord, expected: &Record) -> bool {
    found.version == expected.view().version()
        && found.kind == expected.view().kind()
        && found.value == expected.view().value()
}

#[derive(Debug)]
struct FoundRecord {
    version: Version,
    kind: Kind,
    value: Vec<u8>,
}

fn get(engine: &Engine, key: &[u8]) -> Option<FoundRecord> {
    match engine.get(Space::Data, key, ReadMode::Blocking).unwrap() {
        Lookup::Found(record) => Some(FoundRecord {
            version: record.view().version(),
            kind: record.view().kind(),
            value: record.value().to_vec(),
        }),
        Lookup::Absent => None,
        Lookup::WouldBlock | Lookup::TooLong(_) => panic!("may wait"),
    }
}

fn check(engine: &Engine, model: &Model) {
    for (key, expected) in model {
        let found = get(engine, key).unwrap_or_else(|| panic!("{key:?} is gone"));
        assert!(same(&found, expected), "{key:?}: {found:?}, expected {expected:?}");
    }
    let mut scan = engine.snapshot().scan(Space::Data, b"", None);
    let mut expected = model.iter();
    while let Some((key, record)) = scan.next().unwrap() {
        let (expected_key, expected_record) = expected.next().expect("nothing invented");
        assert_eq!(key, expected_key);
        assert_eq!(record.order(&expected_record.view()), std::cmp::Ordering::Equal);
    }
    assert!(expected.next().is_none(), "the scan ended early");
}

/// Flushes all memtables.
fn flush_all(engine: &Engine) {
    engine.rotate_all();
    engine.flush_rotated().unwrap();
}

fn run_background_step(engine: &Engine, random: &mut Random) {
    match random.below(4) {
        0 => engine.rotate_all(),
        1 => while engine.flush_one().unwrap() == StepOutcome::Done {},
        2 => drop(engine.compact_one().unwrap()),
        _ => engine.prepare_segment().unwrap(),
    }
}

/// Writes versions in any order, with flushes, compactions and restarts in between.
#[test]
fn the_engine_equals_a_sorted_map_in_any_order_of_arrival() {
    for seed in 1..=12 {
        let mut random = Random(seed * 7919);
        let (disk, options) = (MemDisk::new(), small_options());
        let (mut engine, mut model) = (open(&disk, &options), Model::new());
        for round in 0..1500 {
            let key = format!("key{:03}", random.below(300)).into_bytes();
            let kind = if random.below(5) == 0 { Kind::Tombstone } else { Kind::Value };
            // Half of the writes are late: their versions may be older than existing ones.
            let time = if random.below(2) == 0 { 10_000 + round } else { 1 + random.below(20_000) };
            let value = vec![round as u8; random.below(200) as usize];
            let value = if kind == Kind::Value { &value[..] } else { &[] };
            write(&engine, &mut model, &key, kind, time, value);
            if random.below(20) == 0 {
                run_background_step(&engine, &mut random);
            }
            if random.below(300) == 0 {
                drop(engine);
                engine = open(&disk, &options);
            }
        }
        check(&engine, &model);
        flush_all(&engine);
        while engine.compact_one().unwrap() == StepOutcome::Done {}
        check(&engine, &model);
        engine.compact_all().unwrap();
        check(&engine, &model);
        let values = model.values().filter(|record| record.view().kind() == Kind::Value).count();
        assert_eq!(engine.stats().keys, values as u64, "exact after a full compaction");
        drop(engine);
        check(&open(&disk, &options), &model);
    }
}

#[test]
fn keys_written_and_deleted_between_two_flushes_do_not_reduce_the_key_count() {
    let (disk, mut model) = (MemDisk::new(), Model::new());
    let options = Options { memtable_bytes: 1 << 20, ..small_options() };
    let engine = open(&disk, &options);
    let mut put = |engine: &Engine, prefix: &str, kind: Kind, time: u64| {
        for number in 0..100 {
            let key = format!("{prefix}{number}");
            let value: &[u8] = if kind == Kind::Value { b"value" } else { b"" };
            write(engine, &mut model, key.as_bytes(), kind, time, value);
        }
    };
    put(&engine, "kept", Kind::Value, 1);
    for prefix in ["a", "b"] {
        put(&engine, prefix, Kind::Value, 1);
        put(&engine, prefix, Kind::Tombstone, 2);
    }
    assert_eq!(engine.stats().keys, 100);
    flush_all(&engine);
    assert_eq!(engine.stats().keys, 100);
    put(&engine, "later", Kind::Value, 1);
    put(&engine, "kept", Kind::Tombstone, 2);
    flush_all(&engine);
    assert_eq!(engine.stats().keys, 100);
    drop(engine);
    assert_eq!(open(&disk, &options).stats().keys, 100);
}

/// A power cut at any operation loses no acknowledged write and adds no write.
#[test]
fn a_crash_at_every_operation_keeps_acknowledged_writes() {
    let options = small_options();
    let mut at = 1;
    loop {
        let disk = MemDisk::new();
        disk.crash_after(at);
        let (acknowledged, attempted) = run_until_crash(&disk, &options);
        let finished = disk.cut_site().is_none();
        for crashed in [disk.crash(at), disk.process_crash()] {
            let engine = open(&crashed, &options);
            check_bounds(&engine, &acknowledged, &attempted);
            // A write after the recovery survives the next crash.
            let mut model = Model::new();
            write(&engine, &mut model, b"after", Kind::Value, 1 << 40, b"recovery");
            let again = open(&crashed.crash(at + 1), &options);
            check_bounds(&again, &acknowledged, &attempted);
            assert!(get(&again, b"after").is_some());
        }
        if finished {
            return;
        }
        at += 1 + at / 64;
    }
}

type Times = BTreeMap<Vec<u8>, u64>;

/// Executes some hundred writes with flushes and compactions. Returns the greatest acknowledged and
/// the greatest attempted version of each key.
fn run_until_crash(disk: &MemDisk, options: &Options) -> (Times, Times) {
    let (mut acknowledged, mut attempted) = (Times::new(), Times::new());
    let Ok(engine) = Engine::open(Arc::new(disk.clone()), options.clone()) else {
        return (acknowledged, attempted);
    };
    let mut random = Random(42);
    for round in 1..400_u64 {
        let key = format!("key{:02}", random.below(40)).into_bytes();
        let mut batch = Batch::new();
        batch.put(Space::Data, &key, version(round), &[7; 300]).unwrap();
        attempted.insert(key.clone(), round);
        if engine.commit(std::iter::once(&batch)).is_err() {
            break;
        }
        acknowledged.insert(key, round);
        if round % 40 == 0 {
            engine.rotate_all();
            let flushed = engine.flush_one();
            if flushed.is_err() || engine.compact_one().is_err() {
                break;
            }
        }
    }
    (acknowledged, attempted)
}

fn check_bounds(engine: &Engine, acknowledged: &Times, attempted: &Times) {
    for (key, last) in attempted {
        let least = acknowledged.get(key).copied().unwrap_or(0);
        let found = get(engine, key).map_or(0, |found| found.version.time);
        assert!(found >= least, "{key:?}: version {least} was acknowledged, {found} is there");
        assert!(found <= *last, "{key:?}: version {found} was never written");
    }
}

#[test]
fn a_snapshot_does_not_contain_later_writes() {
    let (disk, options) = (MemDisk::new(), small_options());
    let (engine, mut model) = (open(&disk, &options), Model::new());
    for i in 0..200_u64 {
        write(&engine, &mut model, &i.to_be_bytes(), Kind::Value, 1 + i, b"old");
    }
    let snapshot = engine.snapshot();
    for i in 100..300_u64 {
        write(&engine, &mut model, &i.to_be_bytes(), Kind::Value, 1000 + i, b"new");
    }
    flush_all(&engine);
    engine.compact_all().unwrap();
    let mut scan = snapshot.scan(Space::Data, b"", None);
    let mut seen = 0;
    while let Some((_, record)) = scan.next().unwrap() {
        assert_eq!(record.value(), b"old");
        seen += 1;
    }
    assert_eq!(seen, 200);
    check(&engine, &model);
}

#[test]
fn tombstones_are_purged_only_when_allowed_and_nothing_older_is_left() {
    for allowed in [false, true] {
        let disk = MemDisk::new();
        let purge = if allowed { PurgeRule::always() } else { PurgeRule::never() };
        let options = Options { purge: Arc::new(purge), new_tree_bits: 0, ..small_options() };
        let (engine, mut model) = (open(&disk, &options), Model::new());
        write(&engine, &mut model, b"k", Kind::Value, 1, b"v");
        engine.rotate_all();
        engine.flush_one().unwrap();
        write(&engine, &mut model, b"k", Kind::Tombstone, 2, b"");
        engine.rotate_all();
        engine.flush_one().unwrap();
        engine.compact_all().unwrap();
        assert_eq!(get(&engine, b"k").is_none(), allowed);
    }
}

#[test]
fn a_tombstone_stays_while_an_older_record_may_lie_above_it() {
    let disk = MemDisk::new();
    let options =
        Options { purge: Arc::new(PurgeRule::always()), new_tree_bits: 0, ..small_options() };
    let (engine, mut model) = (open(&disk, &options), Model::new());
    for (kind, time) in [(Kind::Value, 1), (Kind::Tombstone, 9)] {
        write(&engine, &mut model, b"k", kind, time, b"");
        engine.rotate_all();
        engine.flush_one().unwrap();
    }
    // A late record: older than the tombstone, and still in the memtable when the tombstone reaches
    // the deepest level.
    write(&engine, &mut model, b"k", Kind::Value, 5, b"");
    while engine.compact_one().unwrap() == StepOutcome::Done {}
    assert_eq!(get(&engine, b"k").unwrap().kind, Kind::Tombstone);
}

#[test]
fn a_tombstone_stays_while_an_older_record_lies_below_it() {
    let disk = MemDisk::new();
    let options = Options {
        purge: Arc::new(PurgeRule::always()),
        new_tree_bits: 0,
        level1_bytes: 1,
        ..small_options()
    };
    let (engine, mut model) = (open(&disk, &options), Model::new());
    let write_two_tables = |model: &mut Model, kind, time| {
        for key in [b"k", b"l"] {
            write(&engine, model, key, kind, time, b"");
            engine.rotate_all();
            engine.flush_one().unwrap();
        }
    };
    write_two_tables(&mut model, Kind::Value, 1);
    while engine.compact_one().unwrap() == StepOutcome::Done {}
    write_two_tables(&mut model, Kind::Tombstone, 2);
    assert_eq!(engine.compact_one().unwrap(), StepOutcome::Done);
    let levels = engine.stats().levels;
    assert_eq!((levels[0].tables, levels[1].tables), (0, 1), "merged above the values");
    assert_eq!(get(&engine, b"k").unwrap().kind, Kind::Tombstone);
}

#[test]
fn batches_are_atomic_across_trees_and_spaces() {
    let (disk, options) = (MemDisk::new(), small_options());
    let engine = open(&disk, &options);
    let mut batch = Batch::new();
    for i in 0..50_u64 {
        batch.put(Space::Data, &i.to_be_bytes(), version(1), b"data").unwrap();
        batch.put(Space::Hints, &i.to_be_bytes(), version(1), b"hint").unwrap();
    }
    engine.commit(std::iter::once(&batch)).unwrap();
    drop(engine);
    let engine = open(&disk, &options);
    for (space, value) in [(Space::Data, b"data"), (Space::Hints, b"hint")] {
        let mut scan = engine.snapshot().scan(space, b"", None);
        let mut seen = 0;
        while let Some((_, record)) = scan.next().unwrap() {
            assert_eq!(record.value(), value);
            seen += 1;
        }
        assert_eq!(seen, 50);
    }
}

/// The interval sync runs concurrently with flushes, which release log segments that a sync may
/// still use.
#[test]
fn a_sync_during_flushes_does_not_fail_on_a_removed_segment() {
    let options = Options { sync: SyncMode::Never, segment_bytes: 2048, ..small_options() };
    let engine = open(&MemDisk::new(), &options);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncing = [(); 6].map(|()| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) && engine.sync_log().is_ok() {
                    std::thread::yield_now();
                }
            })
        });
        for time in 1..1500 {
            for part in 0..3_u64 {
                let mut batch = Batch::new();
                batch.put(Space::Data, &part.to_be_bytes(), version(time), &[1; 900]).unwrap();
                engine.commit(std::iter::once(&batch)).unwrap();
            }
            flush_all(&engine);
            while engine.compact_one().unwrap() == StepOutcome::Done {}
        }
        done.store(true, Ordering::Release);
        syncing.into_iter().for_each(|thread| thread.join().unwrap());
        engine.check_health().unwrap();
    });
}

/// A tree with a single write must not keep the log from shrinking while the other tree gets all
/// further writes.
#[test]
fn a_rarely_written_tree_does_not_pin_the_log() {
    let (disk, options) = (MemDisk::new(), small_options());
    let engine = open(&disk, &options);
    let of_tree =
        |tree| (0_u64..).find(|i| engine.core.trees.index_of(hash_of(&i.to_be_bytes())) == tree);
    let (lonely, busy) = (of_tree(0).unwrap(), of_tree(1).unwrap());
    let mut model = Model::new();
    write(&engine, &mut model, &lonely.to_be_bytes(), Kind::Value, 1, b"once");
    let mut most = 0;
    for time in 2..8000 {
        write(&engine, &mut model, &busy.to_be_bytes(), Kind::Value, time, &[1; 400]);
        while engine.flush_one().unwrap() == StepOutcome::Done {}
        most = most.max(engine.stats().wal_segments);
    }
    assert!(most <= log_bound(&engine.core) as u64 + 2, "{most} segments");
    assert!(engine.stats().wal_bytes > (most + 10) * options.segment_bytes as u64);
    check(&engine, &model);
}

/// The time of a correct clock, in tests of records that a wrong clock wrote.
const CORRECT_TIME: u64 = 1_000_000;
const FUTURE: RemovalFilter<'_> =
    RemovalFilter { time: CORRECT_TIME, spaces: &[Space::Data], proven: 0 };

/// Creates a store with future records of separate keys in all levels. For the other keys, four
/// more layers alternate: future records that hide earlier ones, and correct records that arrive
/// after the future ones. Returns the expected content without future records, and the number of
/// future records in these layers.
fn store_with_future_records(disk: &MemDisk, random: &mut Random) -> (Engine, Model, u64) {
    let engine = open(disk, &small_options());
    let (mut model, mut future, mut times) = (Model::new(), Model::new(), 0);
    for step in 0..6_000_u64 {
        let value = vec![step as u8; random.below(120) as usize];
        if random.below(10) == 0 {
            let key = format!("future-{}", random.below(500));
            let time = CORRECT_TIME + 1 + random.below(1_000_000);
            write(&engine, &mut future, key.as_bytes(), Kind::Value, time, &value);
        } else {
            let key = format!("key-{}", random.below(400));
            write(
                &engine,
                &mut model,
                key.as_bytes(),
                Kind::Value,
                random.below(CORRECT_TIME / 2),
                &value,
            );
        }
        if random.below(50) == 0 {
            run_background_step(&engine, random);
        }
    }
    for over in 0..4 {
        flush_all(&engine);
        for _ in 0..100 {
            let key = format!("key-{}", random.below(400));
            let kind = if random.below(4) == 0 { Kind::Tombstone } else { Kind::Value };
            if over % 2 == 0 {
                let time = CORRECT_TIME + 1 + random.below(1_000_000);
                write(&engine, &mut future, key.as_bytes(), kind, time, b"");
                times += 1;
            } else {
                let time = CORRECT_TIME / 2 + random.below(CORRECT_TIME / 2);
                write(&engine, &mut model, key.as_bytes(), kind, time, b"");
            }
        }
    }
    (engine, model, times)
}

#[test]
fn removing_future_records_restores_the_records_they_hid() {
    for seed in 1..8 {
        let (disk, mut random) = (MemDisk::new(), Random(seed));
        let (engine, model, most) = store_with_future_records(&disk, &mut random);
        let mut found = 0;
        engine
            .records_above(FUTURE, |space, _, when| {
                assert!(space == Space::Data && when > CORRECT_TIME);
                found += 1;
            })
            .unwrap();
        assert!(found > most / 2, "{found}");
        assert_eq!(engine.remove_above(FUTURE).unwrap(), found);
        check(&engine, &model);
        assert_eq!(engine.remove_above(FUTURE).unwrap(), 0);
        engine.close().unwrap();
        drop(engine);
        let engine = open(&disk, &small_options());
        check(&engine, &model);
        let tables = disk.list().unwrap().iter().filter(|name| name.ends_with(".sst")).count();
        let levels = engine.stats().levels;
        assert_eq!(tables as u64, levels.iter().map(|level| level.tables).sum::<u64>());
        engine.compact_all().unwrap();
        check(&engine, &model);
    }
}

/// The flush drops a tombstone that lies in the same memtable as a newer record of its key.
#[test]
fn proven_hidden_records_are_not_restored() {
    let disk = MemDisk::new();
    let engine = open(&disk, &small_options());
    let put = |key: &[u8], kind, time, copies| {
        let mut batch = Batch::new();
        let fields = Fields { copies, ..Fields::new(kind, version(time)) };
        batch.write(Space::Data, key, &fields, b"value").unwrap();
        engine.commit(std::iter::once(&batch)).unwrap();
    };
    for (key, time, copies) in [(b"proven", 10, 0), (b"single", 10, 1), (b"newer-", 60, 0)] {
        put(key, Kind::Value, time, copies);
    }
    put(b"others", Kind::Value, 10, 0);
    flush_all(&engine);
    for key in [b"proven", b"single", b"newer-"] {
        put(key, Kind::Tombstone, 70, 0);
        put(key, Kind::Value, CORRECT_TIME + 1, 0);
    }
    let above = RemovalFilter { proven: 50, ..FUTURE };
    assert_eq!(engine.remove_above(above).unwrap(), 3);
    let held = |key: &[u8]| {
        matches!(engine.get(Space::Data, key, ReadMode::Blocking).unwrap(), Lookup::Found(_))
    };
    assert!(!held(b"proven"), "others may have purged what deleted it");
    assert!(held(b"single"), "it is nowhere else");
    assert!(held(b"newer-"), "others still have what deleted it");
    assert!(held(b"others"), "nothing hid it");
}

#[test]
fn removal_keeps_records_of_other_spaces() {
    let disk = MemDisk::new();
    let engine = open(&disk, &small_options());
    let mut batch = Batch::new();
    for space in [Space::Data, Space::Hints, Space::Node] {
        batch.put(space, b"key", version(CORRECT_TIME + 1), b"value").unwrap();
    }
    engine.commit(std::iter::once(&batch)).unwrap();
    let both = RemovalFilter { spaces: &[Space::Data, Space::Hints], ..FUTURE };
    assert_eq!(engine.remove_above(both).unwrap(), 2);
    let held =
        |space| matches!(engine.get(space, b"key", ReadMode::Blocking).unwrap(), Lookup::Found(_));
    assert_eq!([Space::Data, Space::Hints, Space::Node].map(held), [false, false, true]);
}

#[test]
fn an_interrupted_removal_is_completed_later() {
    use crate::disk::{Fault, Op};
    for after in 0..40 {
        let (disk, mut random) = (MemDisk::new(), Random(3));
        let (engine, model, _) = store_with_future_records(&disk, &mut random);
        engine.records_above(FUTURE, |_, _, _| {}).unwrap();
        let (op, suffix) = [(Op::Write, ".sst"), (Op::Sync, ".sst"), (Op::Create, ".sst")]
            .into_iter()
            .cycle()
            .nth(after)
            .unwrap();
        disk.fail(Fault::once(op, 5).suffix(suffix).after(after as u64 / 3));
        let broken = engine.remove_above(FUTURE).is_err();
        drop(engine);
        disk.clear_faults();
        let engine = open(&disk, &small_options());
        engine.remove_above(FUTURE).unwrap();
        check(&engine, &model);
        assert!(broken || after > 3, "the fault struck");
    }
}
