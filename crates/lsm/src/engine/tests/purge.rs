//! Tests of purging: the watermark rises while the engine runs, and compactions run only to purge.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ballots::{add_to_model, deep_options, rank, store};
use super::*;

fn watermark_rule() -> Arc<PurgeRule> {
    Arc::new(PurgeRule::with_watermark(0, 0, || 0))
}

/// Options with levels 0 and 1 larger than the data of these tests, so that compactions run only to
/// purge.
fn large_level_options(rule: &Arc<PurgeRule>) -> Options {
    let purge = Arc::clone(rule);
    Options { purge, new_tree_bits: 0, level0_tables: 9, level1_bytes: 1 << 30, ..small_options() }
}

/// Writes and flushes a record of `kind` for every key, with the version time `time`.
fn write_all(engine: &Engine, kind: Kind, time: u64) {
    write(engine, 0..200, kind, time);
    flush_all(engine);
}

fn write(engine: &Engine, keys: std::ops::Range<u8>, kind: Kind, time: u64) {
    for key in keys {
        let value = if kind == Kind::Value { &[key; 100][..] } else { &[] };
        store(engine, &[key], &Record::new(&[key], &Fields::new(kind, version(time)), value));
    }
}

fn entries(engine: &Engine) -> u64 {
    let state = engine.core.trees.tree(0).load_full();
    state.levels.iter().flatten().map(|table| table.meta().entries).sum()
}

fn compact_while_there_is_work(engine: &Engine) -> usize {
    (0..100).find(|_| engine.compact_one().unwrap() == StepOutcome::Nothing).expect("it ends")
}

#[test]
fn compaction_empties_a_store_whose_keys_are_all_deleted() {
    let (disk, rule) = (MemDisk::new(), watermark_rule());
    let engine = open(&disk, &large_level_options(&rule));
    write_all(&engine, Kind::Value, 1);
    write(&engine, 0..150, Kind::Tombstone, 3);
    write(&engine, 150..200, Kind::Tombstone, 2);
    flush_all(&engine);
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 200, "tombstones stay while nothing is proven");
    engine.compact_all().unwrap();
    rule.raise_watermark(1);
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 200, "they are younger");
    rule.raise_watermark(2);
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 150, "a part of a table too");
    rule.raise_watermark(3);
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 0);
    engine.delete_obsolete_tables();
    assert_eq!(engine.stats().levels.iter().map(|level| level.bytes).sum::<u64>(), 0);
}

#[test]
fn compaction_seeks_purgeable_records_and_terminates() {
    for merged in [false, true] {
        let (disk, rule) = (MemDisk::new(), watermark_rule());
        let engine = open(&disk, &large_level_options(&rule));
        write_all(&engine, Kind::Value, 1);
        engine.compact_all().unwrap();
        write(&engine, 0..100, Kind::Tombstone, 2);
        flush_all(&engine);
        if merged {
            engine.compact_all().unwrap();
        }
        write(&engine, 100..200, Kind::Tombstone, 3);
        flush_all(&engine);
        let before = entries(&engine);
        assert_eq!(compact_while_there_is_work(&engine), 0, "as without any rule");
        assert!(engine.is_idle() && engine.stats().purgeable_bytes == 0);
        rule.raise_watermark(1);
        assert_eq!(compact_while_there_is_work(&engine), 0);
        assert_eq!(entries(&engine), before);

        rule.raise_watermark(2);
        assert!(!engine.is_idle() && engine.stats().purgeable_bytes > 2_000);
        assert!(compact_while_there_is_work(&engine) > 0);
        assert_eq!(engine.stats().purgeable_bytes, 0, "what stays may not go");
        assert!(entries(&engine) < before);

        rule.raise_watermark(3);
        assert!(engine.stats().purgeable_bytes > 2_000);
        compact_while_there_is_work(&engine);
        assert_eq!(entries(&engine), 0);
        assert!(engine.is_idle());
    }
}

#[test]
fn values_that_expired_before_the_watermark_are_purged() {
    let (disk, rule) = (MemDisk::new(), watermark_rule());
    let engine = open(&disk, &large_level_options(&rule));
    for key in 0..100_u8 {
        let expiry_ms = 10 + u64::from(key % 2) * 10;
        let fields = Fields { expiry_ms, ..Fields::new(Kind::Value, version(1)) };
        store(&engine, &[key], &Record::new(&[key], &fields, b"value"));
    }
    flush_all(&engine);
    engine.compact_all().unwrap();
    let millis = |millis: u64| (millis * 1000) << 12;
    rule.raise_watermark(millis(10));
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 100, "not before, but just then");
    rule.raise_watermark(millis(10) + 1);
    engine.compact_all().unwrap();
    assert_eq!(entries(&engine), 50);
    rule.raise_watermark(millis(21));
    compact_while_there_is_work(&engine);
    assert_eq!(entries(&engine), 0);
}

#[test]
fn a_snapshot_keeps_records_purged_after_it() {
    let (disk, rule) = (MemDisk::new(), watermark_rule());
    let engine = open(&disk, &large_level_options(&rule));
    write_all(&engine, Kind::Value, 1);
    write_all(&engine, Kind::Tombstone, 2);
    let snapshot = engine.snapshot();
    let mut begun = snapshot.verified_scan(Space::Data, b"", None, 0);
    assert!(matches!(begun.next(), Some(ScanItem::Record(..))));
    rule.raise_watermark(2);
    engine.compact_all().unwrap();
    engine.delete_obsolete_tables();
    assert!(engine.snapshot().verified_scan(Space::Data, b"", None, 0).next().is_none());
    let (mut plain, mut seen) = (snapshot.scan(Space::Data, b"", None), 0);
    while let Some((_, record)) = plain.next().unwrap() {
        assert_eq!(record.kind(), Kind::Tombstone);
        seen += 1;
    }
    while let Some(ScanItem::Record(_, record)) = begun.next() {
        assert_eq!(record.kind(), Kind::Tombstone);
        seen += 1;
    }
    assert_eq!(seen, 399);
}

#[derive(Debug, Clone)]
enum Step {
    /// A write above the watermark, as the fence of a repair round guarantees.
    Write {
        key: u8,
        above: u64,
        ballot: bool,
        kind: u8,
        expires: bool,
    },
    Raise(u64),
    Rotate,
    Flush,
    Compact,
    CompactAll,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0u8..24, 1u64..9, any::<bool>(), 0u8..5, any::<bool>());
    prop_oneof![
        20 => write.prop_map(|(key, above, ballot, kind, expires)| {
            Step::Write { key, above, ballot, kind, expires }
        }),
        3 => (1u64..6).prop_map(Step::Raise),
        1 => Just(Step::Rotate),
        3 => Just(Step::Flush),
        3 => Just(Step::Compact),
        1 => Just(Step::CompactAll),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Only records that the rule permits to be purged disappear, and no hidden record reappears.
    #[test]
    fn only_records_up_to_the_watermark_are_purged(steps in vec(step(), 1..150)) {
        let (disk, rule) = (MemDisk::new(), watermark_rule());
        let options = Options {
            purge: Arc::clone(&rule),
            block_bytes: 128,
            table_bytes: 1024,
            ..deep_options()
        };
        let (mut engine, mut model) = (open(&disk, &options), Model::new());
        for step in steps {
            match step {
                Step::Write { key, above, ballot, kind, expires } => {
                    let time = rule.watermark() + above;
                    let kind = match kind {
                        0 => Kind::Tombstone,
                        1 => Kind::Superseded,
                        _ => Kind::Value,
                    };
                    let fields = Fields {
                        ballot: if ballot { time + above % 3 } else { 0 },
                        step: 1,
                        expiry_ms: u64::from(expires && kind == Kind::Value),
                        ..Fields::new(kind, version(time))
                    };
                    let record = Record::new(&[key], &fields, b"");
                    store(&engine, &[key], &record);
                    add_to_model(&mut model, &[key], record);
                }
                Step::Raise(by) => rule.raise_watermark(rule.watermark() + by),
                Step::Rotate => engine.rotate_all(),
                Step::Flush => flush_all(&engine),
                Step::Compact => {
                    engine.compact_one().unwrap();
                }
                Step::CompactAll => engine.compact_all().unwrap(),
                Step::Reopen => {
                    drop(engine);
                    engine = open(&disk, &options);
                }
            }
            check_only_purgeable_records_are_missing(&engine, &model, &rule);
        }
        flush_all(&engine);
        engine.compact_all().unwrap();
        check_only_purgeable_records_are_missing(&engine, &model, &rule);
        let watermark = rule.watermark();
        let is_purgeable =
            |record: &&Record| PurgeRule::is_purgeable_at(record.view(), watermark);
        let stay = model.len() - model.values().filter(is_purgeable).count();
        prop_assert_eq!(entries(&engine), stay as u64, "all that may go is gone");
    }
}

fn check_only_purgeable_records_are_missing(engine: &Engine, model: &Model, rule: &PurgeRule) {
    for (key, expected) in model {
        let watermark = rule.watermark();
        match engine.get(Space::Data, key, ReadMode::Blocking).unwrap() {
            Lookup::Found(found) => assert_eq!(rank(&found), rank(expected)),
            Lookup::Absent => assert!(
                PurgeRule::is_purgeable_at(expected.view(), watermark),
                "{expected:?} is gone at {watermark}"
            ),
            other => panic!("{other:?}"),
        }
    }
}
