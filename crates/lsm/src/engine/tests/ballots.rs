//! Tests of records of conditional writes. Most of these have an old version and a recent ballot,
//! which is the record's write time. A read finds the greatest record of a key, whatever memtables
//! and tables contain the key's records.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use record::RecordRef;

/// Options with which every compaction moves a table one level deeper.
pub(super) fn deep_options() -> Options {
    Options { new_tree_bits: 0, level1_bytes: 1, ..small_options() }
}

pub(super) fn new_record(key: &[u8], time: u64, ballot: u64, kind: Kind, value: &[u8]) -> Record {
    Record::new(key, &Fields { ballot, step: 1, ..Fields::new(kind, version(time)) }, value)
}

/// The order of records, independent of the tested code.
pub(super) fn rank(record: &Record) -> (Version, u64, u8, u64) {
    let view = record.view();
    (view.version(), view.ballot(), view.kind() as u8, view.check())
}

pub(super) fn store(engine: &Engine, key: &[u8], record: &Record) {
    let mut batch = Batch::new();
    batch.record(Space::Data, key, record).unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
}

pub(super) fn add_to_model(model: &mut Model, key: &[u8], record: Record) {
    let held = model.entry(key.to_vec()).or_insert_with(|| record.clone());
    if rank(&record) > rank(held) {
        *held = record;
    }
}

/// Checks lookups, a full scan, and scans since every relevant time.
fn check_all(engine: &Engine, model: &Model, times: u64) {
    let is = |found: RecordRef<'_>, expected: &Record| rank(&found.to_record()) == rank(expected);
    for (key, expected) in model {
        match engine.get(Space::Data, key, ReadMode::Blocking).unwrap() {
            Lookup::Found(found) => assert!(is(found.view(), expected), "{found:?} {expected:?}"),
            other => panic!("{other:?}, not {expected:?}"),
        }
        let head = engine.lookup_head(Space::Data, key).unwrap();
        assert_eq!(head, HeadLookup::Found(RecordHead::of(&expected.view())), "{expected:?}");
        for time in 0..=times {
            let newer = engine.holds_newer(Space::Data, key, version(time)).unwrap();
            let held = expected.view().version();
            let expected =
                if held > version(time) { NewerVersion::Held(held) } else { NewerVersion::No };
            assert_eq!(newer, expected, "above {time}");
        }
    }
    for since in 0..=times + 1 {
        let mut found = BTreeMap::new();
        let mut scan = engine.snapshot().scan_since(Space::Data, b"", None, since);
        while let Some((key, record)) = scan.next().unwrap() {
            found.insert(key.to_vec(), record.to_record());
        }
        for (key, expected) in model.iter().filter(|(_, held)| held.view().write_time() >= since) {
            let found = found.get(key).unwrap_or_else(|| panic!("{expected:?} since {since}"));
            assert!(is(found.view(), expected), "{found:?}, not {expected:?} since {since}");
        }
        assert!(found.keys().all(|key| model.contains_key(key)));
    }
    let times = model.values().map(|held| held.view().write_time().max(held.view().version().time));
    assert!(engine.greatest_time() >= times.max().unwrap_or(0));
}

/// Two records of a key in every combination of two positions, in both orders.
#[test]
fn a_read_finds_the_greater_of_two_records_in_all_positions() {
    let flush = |engine: &Engine| {
        engine.rotate_all();
        while engine.flush_one().unwrap() == StepOutcome::Done {}
    };
    let steps: [&dyn Fn(&Engine); 5] = [
        &|_| (),
        &|engine| engine.rotate_all(),
        &flush,
        &|engine| {
            flush(engine);
            while engine.compact_one().unwrap() == StepOutcome::Done {}
        },
        &|engine| {
            flush(engine);
            engine.compact_all().unwrap();
        },
    ];
    let records = [(5, 0), (5, 8), (5, 9), (4, 20), (6, 0)];
    for first in records {
        for second in records.into_iter().filter(|second| *second != first) {
            for (between, after) in (0..25).map(|n| (steps[n / 5], steps[n % 5])) {
                let (disk, options) = (MemDisk::new(), deep_options());
                let (engine, mut model) = (open(&disk, &options), Model::new());
                for (time, ballot) in [first, second] {
                    let record = new_record(b"k", time, ballot, Kind::Value, b"value");
                    store(&engine, b"k", &record);
                    add_to_model(&mut model, b"k", record);
                    check_all(&engine, &model, 21);
                    between(&engine);
                    check_all(&engine, &model, 21);
                }
                after(&engine);
                check_all(&engine, &model, 21);
                drop(engine);
                check_all(&open(&disk, &options), &model, 21);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write { key: u8, time: u64, ballot: u64, tombstone: bool, fill: u8 },
    Rotate,
    Flush,
    Compact,
    CompactAll,
    Reopen,
    Crash(u64),
}

/// Times and ballots share one range, so that either can precede the other.
const TIMES: u64 = 12;

fn step() -> impl Strategy<Value = Step> {
    let ballot = prop_oneof![Just(0), 1..TIMES];
    let write = (0u8..5, 1..TIMES, ballot, any::<bool>(), 0u8..3);
    prop_oneof![
        10 => write.prop_map(|(key, time, ballot, tombstone, fill)| {
            Step::Write { key, time, ballot, tombstone, fill }
        }),
        2 => Just(Step::Rotate),
        2 => Just(Step::Flush),
        2 => Just(Step::Compact),
        1 => Just(Step::CompactAll),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 200 }))]

    #[test]
    fn the_engine_equals_a_map_sorted_by_rank(steps in vec(step(), 1..60)) {
        let (mut disk, options) = (MemDisk::new(), deep_options());
        let (mut engine, mut model) = (open(&disk, &options), Model::new());
        for step in steps {
            match step {
                Step::Write { key, time, ballot, tombstone, fill } => {
                    let kind = if tombstone { Kind::Tombstone } else { Kind::Value };
                    let value = vec![fill; usize::from(fill) * 100];
                    let value = if tombstone { &[] } else { &value[..] };
                    let record = new_record(&[key], time, ballot, kind, value);
                    store(&engine, &[key], &record);
                    add_to_model(&mut model, &[key], record);
                }
                Step::Rotate => engine.rotate_all(),
                Step::Flush => drop(engine.flush_one().unwrap()),
                Step::Compact => drop(engine.compact_one().unwrap()),
                Step::CompactAll => engine.compact_all().unwrap(),
                Step::Reopen => {
                    drop(engine);
                    engine = open(&disk, &options);
                }
                Step::Crash(seed) => {
                    drop(engine);
                    disk = disk.crash(seed);
                    engine = open(&disk, &options);
                }
            }
            check_all(&engine, &model, TIMES);
        }
        engine.close().unwrap();
        drop(engine);
        check_all(&open(&disk, &options), &model, TIMES);
    }

    /// Every record written after a time is removed, including the records that conditional writes
    /// derived from older records.
    #[test]
    fn records_written_after_a_time_are_removed(
        writes in vec((0u8..40, 1..TIMES, 0..TIMES, 0u8..4), 1..120),
        limit in 0..TIMES,
    ) {
        let (disk, options) = (MemDisk::new(), deep_options());
        let (engine, mut model) = (open(&disk, &options), Model::new());
        for (key, time, ballot, then) in writes {
            let late = if ballot > 0 { ballot > limit } else { time > limit };
            // Each write has its own key, because hidden records that a compaction dropped do not
            // reappear.
            let key = [key, u8::from(late)];
            let record = new_record(&key, time, ballot, Kind::Value, b"value");
            store(&engine, &key, &record);
            if !late {
                add_to_model(&mut model, &key, record);
            }
            match then {
                0 => engine.rotate_all(),
                1 => drop(engine.flush_one().unwrap()),
                2 => drop(engine.compact_one().unwrap()),
                _ => {}
            }
        }
        let above = RemovalFilter { time: limit, spaces: &[Space::Data], proven: 0 };
        let mut found = 0;
        engine.records_above(above, |_, key, when| {
            assert!(key[1] == 1 && when > limit);
            found += 1;
        }).unwrap();
        prop_assert_eq!(engine.remove_above(above).unwrap(), found);
        check_all(&engine, &model, TIMES);
        check(&engine, &model);
        drop(engine);
        check(&open(&disk, &options), &model);
    }
}
