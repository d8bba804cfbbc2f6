//! Tests of the dropping of orphaned records: no other record is dropped, and no older record of a
//! key becomes visible.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;

use super::ballots::{add_to_model, deep_options, rank, store};
use super::*;
use crate::table::{Access, TableIter};

/// Number of copies with which a record is placed here, whatever its key.
const EVERYWHERE: u8 = 9;

/// Places the even keys on this node.
fn is_placed(key: &[u8], copies: u8) -> bool {
    copies == EVERYWHERE || key[0].is_multiple_of(2)
}

fn rule() -> Arc<PurgeRule> {
    Arc::new(PurgeRule::with_watermark(0, 0, || 0))
}

fn with(rule: &Arc<PurgeRule>, options: Options) -> Options {
    Options { purge: Arc::clone(rule), block_bytes: 128, table_bytes: 1024, ..options }
}

fn record(key: u8, kind: Kind, time: u64, ballot: u64, copies: u8) -> Record {
    let fields = Fields { ballot, step: 1, copies, ..Fields::new(kind, version(time)) };
    Record::new(&[key], &fields, if kind == Kind::Value { &[7; 40] } else { &[] })
}

/// Writes and flushes a record for each key below 60.
fn write_layer(engine: &Engine, kind: Kind, time: u64, ballot: u64) {
    for key in 0..60 {
        store(engine, &[key], &record(key, kind, time, ballot, 0));
    }
    flush_all(engine);
}

/// Keys of all records in tables, including hidden ones.
fn keys_in_tables(engine: &Engine) -> Vec<u8> {
    let state = engine.core.trees.tree(0).load_full();
    let mut keys = Vec::new();
    for table in state.levels.iter().flatten() {
        let mut iter = TableIter::new(Arc::clone(table), Access::Sequential);
        iter.seek(&[]).unwrap();
        while iter.valid() {
            if iter.key()[0] == Space::Data as u8 {
                keys.push(iter.key()[1]);
            }
            iter.next().unwrap();
        }
    }
    keys
}

fn orphans_in(engine: &Engine) -> usize {
    keys_in_tables(engine).iter().filter(|key| !is_placed(&[**key], 0)).count()
}

/// Flushes and compacts the whole store, as a requested compaction does.
fn compact_whole(engine: &Engine) {
    flush_all(engine);
    engine.compact_all().unwrap();
}

/// Writes four layers of records for all keys to several levels; newer records hide older ones.
fn write_several_levels(engine: &Engine) {
    for (time, kind, ballot) in [
        (1, Kind::Value, 0),
        (2, Kind::Tombstone, 0),
        (3, Kind::Value, 9),
        (4, Kind::Superseded, 9),
    ] {
        write_layer(engine, kind, time, ballot);
        if time < 3 {
            engine.compact_one().unwrap();
        }
    }
    let state = engine.core.trees.tree(0).load_full();
    assert!(state.levels.iter().filter(|level| !level.is_empty()).count() >= 2, "levels");
}

#[test]
fn no_orphans_are_dropped_unless_requested() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_several_levels(&engine);
    compact_whole(&engine);
    assert_eq!(keys_in_tables(&engine).len(), 60);
    assert!(!rule.is_dropping());
    rule.drop_orphans(is_placed);
    rule.stop_dropping();
    compact_whole(&engine);
    assert_eq!((keys_in_tables(&engine).len(), rule.is_dropping()), (60, false));
}

#[test]
fn a_full_compaction_drops_all_orphans_of_every_kind_and_level() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_several_levels(&engine);
    // The newest records of some keys are in memory.
    for key in 0..20 {
        store(&engine, &[key], &record(key, Kind::Value, 7, 0, 0));
    }
    for key in [41, 43] {
        store(&engine, &[key], &record(key, Kind::Value, 7, 0, EVERYWHERE));
    }
    let mut other = Batch::new();
    other.put(Space::Node, &[1], version(1), b"its own").unwrap();
    other.put(Space::Hints, &[1], version(1), b"for another").unwrap();
    engine.commit(std::iter::once(&other)).unwrap();
    rule.drop_orphans(is_placed);
    compact_whole(&engine);
    rule.stop_dropping();
    assert!(!rule.is_dropping());
    let expected: Vec<u8> = (0..60).filter(|key| key % 2 == 0 || [41, 43].contains(key)).collect();
    let held = |engine: &Engine| {
        let mut keys = keys_in_tables(engine);
        keys.sort_unstable();
        keys
    };
    assert_eq!(held(&engine), expected);
    for space in [Space::Node, Space::Hints] {
        assert!(engine.read(space, &[1]).unwrap().is_some());
    }
    drop(engine);
    let engine = open(&disk, &options);
    flush_all(&engine);
    assert_eq!(held(&engine), expected, "the log brings nothing back");
}

/// Each table of the deepest level is rewritten once, except tables written without orphaned
/// records.
#[test]
fn moved_and_deepest_tables_are_rewritten_once() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_layer(&engine, Kind::Value, 1, 0);
    compact_whole(&engine);
    rule.drop_orphans(is_placed);
    let compactions = || engine.stats().compactions;
    let before = compactions();
    engine.compact_all().unwrap();
    assert_eq!(orphans_in(&engine), 0);
    let (steps, state) = (compactions() - before, engine.core.trees.tree(0).load_full());
    assert!(steps > 0 && state.levels.iter().flatten().count() > 1);
    engine.compact_all().unwrap();
    assert_eq!(compactions(), before + steps, "nothing is left to be asked");
    // A new cleanup checks all tables again, because its rule may be another.
    rule.drop_orphans(|key, _| key[0].is_multiple_of(4));
    engine.compact_all().unwrap();
    assert_eq!(keys_in_tables(&engine).len(), 15);
}

/// Records written during the compaction lie above all tables that the compaction has yet to
/// process.
#[test]
fn concurrent_writes_keep_no_orphans() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    for writes_every in 1..4 {
        let engine = open(&disk, &options);
        write_several_levels(&engine);
        rule.drop_orphans(is_placed);
        flush_all(&engine);
        let (mut whole, mut steps) = (FullCompaction::default(), 0);
        while engine.compact_next(&mut whole).unwrap() == StepOutcome::Done {
            steps += 1;
            if steps % writes_every == 0 {
                for key in [0, 30, 58] {
                    store(&engine, &[key], &record(key, Kind::Value, 10 + steps, 0, 0));
                }
                flush_all(&engine);
                engine.compact_one().unwrap();
            }
        }
        assert_eq!(orphans_in(&engine), 0, "a write every {writes_every} steps of {steps}");
        rule.stop_dropping();
    }
}

/// An orphaned record has hidden a record that is placed here, so it must stay as the only record
/// of the key.
#[test]
fn an_orphan_that_hides_a_placed_record_stays() {
    let whole = |engine: &Engine, rule: &PurgeRule| {
        rule.drop_orphans(is_placed);
        compact_whole(engine);
        rule.stop_dropping();
    };
    // The two records are in one memtable or in several tables, merged before or not, in either
    // order.
    for (flushes, compacts, order) in [
        (false, false, [1, 2]),
        (false, true, [2, 1]),
        (true, false, [1, 2]),
        (true, false, [2, 1]),
        (true, true, [1, 2]),
        (true, true, [2, 1]),
    ] {
        let rule = rule();
        let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
        let engine = open(&disk, &options);
        for time in order {
            let copies = if time == 1 { EVERYWHERE } else { 1 };
            for key in [1, 2, 3] {
                let copies = if key == 3 { 2 } else { copies };
                store(&engine, &[key], &record(key, Kind::Value, time, 0, copies));
            }
            if flushes {
                flush_all(&engine);
            }
        }
        if compacts {
            compact_whole(&engine);
            compact_whole(&engine);
        }
        let hidden = || {
            let mut scan = engine.snapshot().scan(Space::Data, &[1], None);
            scan.next().unwrap().unwrap();
            scan.hidden_copies().collect::<Vec<_>>()
        };
        assert_eq!(hidden(), [EVERYWHERE]);
        drop(engine);
        let engine = open(&disk, &options);
        for _ in 0..2 {
            whole(&engine, &rule);
            assert_eq!(keys_in_tables(&engine), [1, 2], "{flushes} {compacts} {order:?}");
            let found = engine.read(Space::Data, &[1]).unwrap().unwrap();
            assert_eq!((found.view().version(), found.view().copies()), (version(2), 1));
        }
        // A newer record inherits the hidden copies of the record that it hides, and is dropped
        // once neither the record nor its hidden copies are placed here.
        store(&engine, &[1], &record(1, Kind::Tombstone, 3, 0, 2));
        whole(&engine, &rule);
        assert_eq!(keys_in_tables(&engine), [1, 2]);
        rule.drop_orphans(|key, _| key[0].is_multiple_of(2));
        compact_whole(&engine);
        assert_eq!(keys_in_tables(&engine), [2]);
    }
}

/// The hidden copies of a record received from another node describe the store of that node.
#[test]
fn copies_hidden_in_another_store_do_not_keep_an_orphan() {
    let (rule, other) = (rule(), rule());
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&MemDisk::new(), &with(&other, deep_options()));
    store(&engine, &[1], &record(1, Kind::Value, 1, 0, EVERYWHERE));
    store(&engine, &[1], &record(1, Kind::Value, 2, 0, 1));
    flush_all(&engine);
    let sent = engine.read(Space::Data, &[1]).unwrap().unwrap();
    let engine = open(&disk, &options);
    store(&engine, &[1], &sent);
    rule.drop_orphans(is_placed);
    compact_whole(&engine);
    assert!(keys_in_tables(&engine).is_empty());
}

/// A majority may not have stored the record, and this node does not complete the record's write.
#[test]
fn a_conditional_record_is_dropped_by_its_own_copies() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    store(&engine, &[1], &record(1, Kind::Value, 1, 0, EVERYWHERE));
    store(&engine, &[1], &record(1, Kind::Value, 1, 7, 0));
    rule.drop_orphans(is_placed);
    compact_whole(&engine);
    assert!(keys_in_tables(&engine).is_empty());
}

#[test]
fn a_snapshot_keeps_records_dropped_after_it() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_several_levels(&engine);
    let snapshot = engine.snapshot();
    let mut begun = snapshot.scan(Space::Data, b"", None);
    assert!(begun.next().unwrap().is_some());
    rule.drop_orphans(is_placed);
    compact_whole(&engine);
    engine.delete_obsolete_tables();
    let left = |mut scan: Scan| {
        let mut seen = 0;
        while let Some((_, record)) = scan.next().unwrap() {
            assert_eq!(record.kind(), Kind::Superseded);
            seen += 1;
        }
        seen
    };
    assert_eq!((left(begun), left(snapshot.scan(Space::Data, b"", None))), (59, 60));
    assert_eq!(left(engine.snapshot().scan(Space::Data, b"", None)), 30);
}

/// Checks that each record found is the newest of its key, and that every other record is orphaned.
fn check_remaining(engine: &Engine, model: &Model) {
    for (key, expected) in model {
        let copies = expected.view().copies();
        match engine.get(Space::Data, key, ReadMode::Blocking).unwrap() {
            Lookup::Found(found) => assert_eq!(rank(&found), rank(expected), "{key:?}"),
            Lookup::Absent => assert!(!is_placed(key, copies), "{key:?} is gone: {expected:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_crash_while_dropping_leaves_the_newest_record_or_none() {
    let rule = rule();
    let (whole, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&whole, &options);
    write_several_levels(&engine);
    drop(engine);
    let model: Model =
        (0..60).map(|key| (vec![key], record(key, Kind::Superseded, 4, 9, 0))).collect();
    let (mut calls, mut crashes) = (0, 0);
    loop {
        let disk = whole.deep_clone();
        let engine = open(&disk, &options);
        rule.drop_orphans(is_placed);
        disk.crash_after(calls);
        let ended = engine.compact_all().is_ok();
        rule.stop_dropping();
        drop(engine);
        if ended {
            break;
        }
        crashes += 1;
        let disk = disk.crash(calls);
        let engine = open(&disk, &options);
        check_remaining(&engine, &model);
        rule.drop_orphans(is_placed);
        compact_whole(&engine);
        assert_eq!(orphans_in(&engine), 0);
        check_remaining(&engine, &model);
        rule.stop_dropping();
        calls += 1;
    }
    assert!(crashes > 10, "{crashes}");
}

#[test]
fn dropping_ends_with_the_step_in_progress() {
    let (rule, asked) = (rule(), Arc::new(AtomicU64::new(0)));
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_several_levels(&engine);
    let (own, count) = (Arc::downgrade(&rule), Arc::clone(&asked));
    rule.drop_orphans(move |key, copies| {
        count.fetch_add(1, Ordering::Relaxed);
        let rule = own.upgrade().unwrap();
        rule.stop_dropping();
        assert!(rule.is_dropping(), "this step does");
        is_placed(key, copies)
    });
    engine.compact_all().unwrap();
    assert!(!rule.is_dropping());
    assert!(asked.load(Ordering::Relaxed) > 60, "the first step went on");
}

#[test]
#[should_panic(expected = "was placed here while what was left of it went")]
fn a_compaction_panics_if_a_dropped_key_becomes_placed() {
    let rule = rule();
    let (disk, options) = (MemDisk::new(), with(&rule, deep_options()));
    let engine = open(&disk, &options);
    write_several_levels(&engine);
    let late = AtomicBool::new(false);
    rule.drop_orphans(move |key, _| late.fetch_or(key[0] == 59, Ordering::Relaxed));
    let _ = engine.compact_all();
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        key: u8,
        time: u64,
        ballot: u64,
        kind: u8,
        copies: u8,
    },
    Flush,
    Compact,
    Raise,
    /// Starts dropping orphaned records.
    Drop,
    /// While orphaned records are dropped, starts or continues a compaction of the whole store.
    Next,
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let copies = prop_oneof![4 => Just(0), 1 => Just(EVERYWHERE)];
    let ballot = prop_oneof![Just(0), 0u64..60];
    let write = (0u8..40, 1u64..60, ballot, 0u8..4, copies);
    prop_oneof![
        40 => write.prop_map(|(key, time, ballot, kind, copies)| {
            Step::Write { key, time, ballot, kind, copies }
        }),
        4 => Just(Step::Flush),
        3 => Just(Step::Compact),
        1 => Just(Step::Raise),
        1 => Just(Step::Drop),
        4 => Just(Step::Next),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

/// A store that drops orphaned records from time to time, and its expected content.
struct World {
    disk: MemDisk,
    options: Options,
    rule: Arc<PurgeRule>,
    engine: Engine,
    model: Model,
    /// Keys that have, or have hidden, a record with `EVERYWHERE` copies, which is always placed
    /// here.
    wide: BTreeSet<u8>,
    /// `None` = dropping is disabled; otherwise the compaction of the whole store, once it has
    /// started.
    dropping: Option<Option<FullCompaction>>,
    watermark: u64,
}

impl World {
    fn new() -> Self {
        let (rule, disk) = (rule(), MemDisk::new());
        let options = with(&rule, deep_options());
        let (engine, model) = (open(&disk, &options), Model::new());
        let wide = BTreeSet::new();
        Self { disk, options, rule, engine, model, wide, dropping: None, watermark: 0 }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Write { key, time, ballot, kind, copies } => {
                let kind = match kind {
                    0 => Kind::Tombstone,
                    1 => Kind::Superseded,
                    _ => Kind::Value,
                };
                // No record below the watermark arrives, and no record that is placed elsewhere
                // arrives during the dropping. Conditional writes have the default number of
                // copies.
                let copies = if ballot == 0 { copies } else { 0 };
                let record = record(key, kind, self.watermark + time, ballot, copies);
                if self.dropping.is_none() || is_placed(&[key], copies) {
                    self.forget_dropped(key);
                    if copies == EVERYWHERE {
                        self.wide.insert(key);
                    }
                    store(&self.engine, &[key], &record);
                    add_to_model(&mut self.model, &[key], record);
                }
            }
            Step::Flush => flush_all(&self.engine),
            Step::Compact => drop(self.engine.compact_one().unwrap()),
            Step::Raise => {
                self.watermark += 5;
                self.rule.raise_watermark(self.watermark);
            }
            Step::Drop if self.dropping.is_none() => {
                self.rule.drop_orphans(is_placed);
                self.dropping = Some(None);
            }
            Step::Drop => {}
            Step::Next => self.next(),
            Step::Crash(seed) => {
                // Each commit has synced its write, so the power cut loses no acknowledged write.
                let disk = self.disk.crash(seed);
                self.rule.stop_dropping();
                self.dropping = None;
                self.engine = open(&disk, &self.options);
                self.disk = disk;
            }
        }
    }

    /// Removes the key from the model if its record was dropped or purged: even an older record
    /// then counts as new.
    fn forget_dropped(&mut self, key: u8) {
        if self.engine.read(Space::Data, &[key]).unwrap().is_none() {
            self.wide.remove(&key);
            if !is_placed(&[key], 0) {
                self.model.remove(&[key][..]);
            }
        }
    }

    /// Returns true if a key's record must stay during the dropping.
    fn must_stay(&self, key: &[u8], record: &Record) -> bool {
        let is_plain = record.view().ballot() == 0;
        is_placed(key, record.view().copies()) || is_plain && self.wide.contains(&key[0])
    }

    fn next(&mut self) {
        let Some(dropping) = &mut self.dropping else { return };
        let whole = dropping.get_or_insert_with(|| {
            flush_all(&self.engine);
            FullCompaction::default()
        });
        if self.engine.compact_next(whole).unwrap() == StepOutcome::Nothing {
            // A record of a conditional write may have stayed because a record that it hides
            // arrived late.
            let stays = |key: &u8| is_placed(&[*key], 0) || self.wide.contains(key);
            assert!(keys_in_tables(&self.engine).iter().all(stays), "orphans");
            self.rule.stop_dropping();
            self.dropping = None;
            let keys: Vec<u8> = self.model.keys().map(|key| key[0]).collect();
            keys.into_iter().for_each(|key| self.forget_dropped(key));
        }
    }

    fn check(&self) {
        for (key, expected) in &self.model {
            let is_proven = PurgeRule::is_purgeable_at(expected.view(), self.watermark);
            let may_go = !self.must_stay(key, expected) || is_proven;
            match self.engine.get(Space::Data, key, ReadMode::Blocking).unwrap() {
                Lookup::Found(found) => assert_eq!(rank(&found), rank(expected)),
                Lookup::Absent => assert!(may_go, "{key:?} is gone: {expected:?}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn in_any_order_of_events_no_orphan_stays_and_none_reappears(steps in vec(step(), 1..250)) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
            world.check();
        }
        world.apply(Step::Drop);
        while world.dropping.is_some() {
            world.apply(Step::Next);
        }
        world.check();
    }
}
