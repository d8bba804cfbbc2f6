//! Tests of the repair and the discard of damage: readable records stay, and rewritten records are
//! found. A crash, a full disk or further damage loses no other record.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ballots::store;
use super::verified_scan::{KEYS, run, scan_damaged, step, store_of_tables, tiny};
use super::*;
use crate::error::Error;
use crate::table::file_name;

/// The offset at which the data blocks end, read from the footer.
fn blocks_end(bytes: &[u8]) -> u64 {
    let footer = &bytes[bytes.len() - 72..];
    u64::from_le_bytes(footer[..8].try_into().unwrap())
}

fn names(engine: &Engine) -> Vec<String> {
    let of_tree = |tree: &super::tree::Tree| {
        let state = tree.load_full();
        state.levels.iter().flatten().map(|t| file_name(t.meta().id)).collect::<Vec<_>>()
    };
    engine.core.trees.iter().flat_map(of_tree).collect()
}

fn ranges_of(reported: &[Damaged]) -> Vec<KeyRange> {
    reported.iter().map(|d| KeyRange { first: d.first.clone(), last: d.last.clone() }).collect()
}

fn is_within(ranges: &[KeyRange], key: &[u8]) -> bool {
    ranges.iter().any(|r| r.first[..] <= *key && r.last.as_ref().is_none_or(|l| key <= &l[..]))
}

/// Writes the records in these ranges again, like a repair from other replicas.
fn heal(engine: &Engine, model: &Model, ranges: &[KeyRange]) {
    for (key, record) in model.iter().filter(|(key, _)| is_within(ranges, key)) {
        store(engine, key, record);
    }
}

fn all_records(engine: &Engine) -> Model {
    let mut scan = engine.snapshot().scan(Space::Data, b"", None);
    let mut found = Model::new();
    while let Some((key, record)) = scan.next().unwrap() {
        found.insert(key.to_vec(), record.to_record());
    }
    found
}

#[test]
fn a_repaired_store_is_sound_whichever_byte_was_damaged() {
    let options = Options { bloom_bits: 10, ..tiny(0) };
    let whole = MemDisk::new();
    let (engine, model) = store_of_tables(&whole, &options);
    let tables = names(&engine);
    drop(engine);
    for name in &tables {
        let end = blocks_end(&whole.file(name).unwrap());
        for byte in (0..end).step_by(11) {
            let disk = whole.deep_clone();
            disk.flip_bit(name, byte * 8 + byte % 8);
            let engine = open(&disk, &options);
            let ranges = ranges_of(&scan_damaged(&engine, &model, 0));
            assert!(!ranges.is_empty());
            heal(&engine, &model, &ranges);
            let discarded = engine.discard(Space::Data, &ranges).unwrap();
            assert_eq!(discarded, Discarded { tables: 1, left: 0 }, "byte {byte} of {name}");
            check(&engine, &model);
            assert_eq!(scan_damaged(&engine, &model, 0).len(), 0);
            assert!(disk.file(name).is_none(), "the damaged table is gone");
            drop(engine);
            check(&open(&disk, &options), &model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// After any history and any damage, rewriting the reported keys restores the original state.
    #[test]
    fn any_damage_is_repaired(
        steps in vec(step(), 1..200),
        flaws in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
        tree_bits in 0u8..2,
    ) {
        let (disk, options) = (MemDisk::new(), tiny(tree_bits));
        let engine = run(open(&disk, &options), &disk, &options, steps);
        flush_all(&engine);
        let (model, tables) = (all_records(&engine), names(&engine));
        if tables.is_empty() {
            return Ok(());
        }
        for (table, byte) in flaws {
            let name = table.get(&tables);
            let end = blocks_end(&disk.file(name).unwrap());
            disk.flip_bit(name, byte.index(end as usize * 8) as u64);
        }
        let ranges = ranges_of(&scan_damaged(&engine, &model, 0));
        heal(&engine, &model, &ranges);
        prop_assert_eq!(engine.discard(Space::Data, &ranges).unwrap().left, 0);
        check(&engine, &model);
        prop_assert_eq!(scan_damaged(&engine, &model, 0).len(), 0);
        let again = engine.discard(Space::Data, &ranges).unwrap();
        prop_assert_eq!(again, Discarded::default(), "sound tables are left alone");
        drop(engine);
        check(&open(&disk, &options), &model);
    }
}

/// Records that no other replica has must not turn into "not found", and must not prevent the
/// repair of the other records.
#[test]
fn a_discard_of_one_range_keeps_the_other_damage_of_the_table() {
    for bloom_bits in [0, 10] {
        let options = Options { bloom_bits, ..tiny(0) };
        let whole = MemDisk::new();
        let (engine, model) = store_of_tables(&whole, &options);
        let name = names(&engine).into_iter().max_by_key(|name| whole.file(name).unwrap().len());
        let name = name.unwrap();
        drop(engine);
        let end = blocks_end(&whole.file(&name).unwrap());
        let flaws =
            (0..end).step_by(23).flat_map(|one| (0..end).step_by(61).map(move |o| (one, o)));
        let mut apart = 0;
        for (one, other) in flaws {
            let disk = whole.deep_clone();
            disk.flip_bit(&name, one * 8);
            let engine = open(&disk, &options);
            let healed = ranges_of(&scan_damaged(&engine, &model, 0));
            disk.flip_bit(&name, other * 8 + 1);
            let both = ranges_of(&scan_damaged(&engine, &model, 0));
            let is_other = |range: &&KeyRange| !healed.contains(range);
            let others: Vec<KeyRange> = both.iter().filter(is_other).cloned().collect();
            let meets = |a: &KeyRange, b: &KeyRange| {
                let before = |a: &KeyRange, b: &KeyRange| {
                    a.last.as_ref().is_some_and(|last| *last < b.first)
                };
                !before(a, b) && !before(b, a)
            };
            let overlap = others.iter().any(|other| healed.iter().any(|one| meets(one, other)));
            if both.len() != 2 || others.len() != 1 || overlap {
                continue;
            }
            apart += 1;
            heal(&engine, &model, &healed);
            let discarded = engine.discard(Space::Data, &healed).unwrap();
            assert_eq!(discarded, Discarded { tables: 1, left: 0 }, "bytes {one}, {other}");
            let reported = ranges_of(&scan_damaged(&engine, &model, 0));
            assert!(reported.iter().all(|range| others.iter().any(|other| meets(range, other))));
            let reopened = open(&disk, &options);
            for (key, record) in &model {
                let found = reopened.get(Space::Data, key, ReadMode::Blocking);
                match found {
                    Ok(_) => assert!(same(&get(&reopened, key).unwrap(), record), "{key:?}"),
                    Err(Error::Corrupt { .. }) => assert!(is_within(&others, key), "{key:?}"),
                    Err(error) => panic!("{error}"),
                }
            }
            heal(&reopened, &model, &reported);
            reopened.discard(Space::Data, &reported).unwrap();
            check(&reopened, &model);
            assert_eq!(scan_damaged(&reopened, &model, 0).len(), 0);
        }
        assert!(apart > 10, "{apart} pairs of flaws");
    }
}

#[test]
fn a_discard_of_another_space_changes_nothing() {
    let options = tiny(0);
    let disk = MemDisk::new();
    let (engine, model) = store_of_tables(&disk, &options);
    let all = KeyRange { first: Vec::new(), last: None };
    disk.flip_bit(&names(&engine)[0], 100);
    let before = scan_damaged(&engine, &model, 0).len();
    let discarded = engine.discard(Space::Hints, std::slice::from_ref(&all)).unwrap();
    assert_eq!(discarded, Discarded::default());
    assert_eq!(scan_damaged(&engine, &model, 0).len(), before);
}

/// A crash at every disk call, or a full disk of any size: readable records stay, and unreadable
/// records are either reported again or discarded.
#[test]
fn crashes_and_a_full_disk_lose_no_readable_record() {
    let options = tiny(0);
    let whole = MemDisk::new();
    let (engine, model) = store_of_tables(&whole, &options);
    let name = names(&engine).into_iter().max_by_key(|name| whole.file(name).unwrap().len());
    drop(engine);
    whole.flip_bit(&name.unwrap(), 100);
    let prepared = || {
        let disk = whole.deep_clone();
        let engine = open(&disk, &options);
        let ranges = ranges_of(&scan_damaged(&engine, &model, 0));
        heal(&engine, &model, &ranges);
        flush_all(&engine);
        (disk, engine, ranges)
    };
    let (disk, engine, ranges) = prepared();
    let (begun, used) = (disk.operations(), disk.used_bytes());
    engine.discard(Space::Data, &ranges).unwrap();
    let calls = disk.operations() - begun;
    assert!(calls > 5, "{calls}");
    for call in 0..calls {
        let (disk, engine, ranges) = prepared();
        disk.crash_after(call);
        let result = engine.discard(Space::Data, &ranges);
        drop(engine);
        let disk = disk.crash(call);
        let engine = open(&disk, &options);
        let reported = scan_damaged(&engine, &model, 0);
        assert!(result.is_err() || reported.is_empty(), "call {call}: it said that it was done");
        for (key, expected) in model.iter().filter(|(key, _)| !is_within(&ranges, key)) {
            assert!(same(&get(&engine, key).unwrap(), expected), "call {call}: {key:?}");
        }
        engine.discard(Space::Data, &ranges).unwrap();
        check(&engine, &model);
    }
    for room in (0..2048).step_by(64) {
        let (disk, engine, ranges) = prepared();
        disk.set_capacity(Some(used + room));
        let result = engine.discard(Space::Data, &ranges);
        assert!(result.as_ref().map_or_else(Error::is_no_space, |_| true), "{result:?}");
        disk.set_capacity(None);
        engine.discard(Space::Data, &ranges).unwrap();
        check(&engine, &model);
        assert_eq!(scan_damaged(&engine, &model, 0).len(), 0);
    }
}

/// A repair writes to the damaged store, so damage must not fail the store: a compaction that reads
/// damage ends, and succeeds after the repair.
#[test]
fn compactions_skip_a_damaged_table_until_it_is_repaired() {
    let (disk, options) = (MemDisk::new(), Options { level0_tables: 2, ..tiny(0) });
    let (engine, mut model) = (open(&disk, &options), Model::new());
    for time in [1, 2] {
        for key in 0..KEYS {
            write(&engine, &mut model, &[key], Kind::Value, time, &[key; 30]);
        }
        flush_all(&engine);
    }
    disk.flip_bit(&names(&engine)[0], 800);
    let ranges = ranges_of(&scan_damaged(&engine, &model, 0));
    for _ in 0..2 {
        assert_eq!(engine.compact_one().unwrap(), StepOutcome::Nothing);
        assert!(engine.is_idle(), "nothing can be done by now");
    }
    assert!(matches!(engine.compact_all(), Err(Error::Corrupt { .. })));
    heal(&engine, &model, &ranges);
    assert_eq!(engine.discard(Space::Data, &ranges).unwrap(), Discarded { tables: 1, left: 0 });
    assert!(!engine.is_idle());
    assert_eq!(engine.compact_one().unwrap(), StepOutcome::Done);
    engine.compact_all().unwrap();
    check(&engine, &model);
}

/// Level 0 is ordered by the creation of its tables, and a read stops at the first record that is
/// not late: a rewritten table must not hide tables with newer records.
#[test]
fn a_rewritten_level_0_table_hides_no_newer_table() {
    let (disk, options) = (MemDisk::new(), Options { bloom_bits: 10, ..tiny(0) });
    let (engine, mut model) = (open(&disk, &options), Model::new());
    for time in [1, 2] {
        for key in 0..KEYS {
            write(&engine, &mut model, &[key], Kind::Value, time, &[key; 30]);
        }
        flush_all(&engine);
    }
    let older = names(&engine).pop().unwrap();
    let end = blocks_end(&disk.file(&older).unwrap());
    disk.flip_bit(&older, end / 2 * 8);
    let ranges = ranges_of(&scan_damaged(&engine, &model, 0));
    heal(&engine, &model, &ranges);
    assert_eq!(engine.discard(Space::Data, &ranges).unwrap().tables, 1);
    check(&engine, &model);
    drop(engine);
    check(&open(&disk, &options), &model);
}
