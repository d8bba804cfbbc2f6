use std::collections::BTreeMap;
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use super::*;
use record::{Fields, Kind, Record};

fn record(key: &[u8], time: u64, value: &[u8]) -> Record {
    Record::new(key, &Fields::new(Kind::Value, Version { time, origin: 1 }), value)
}

fn insert(writer: &mut MemtableWriter, key: &[u8], time: u64, sequence: u64) -> InsertOutcome {
    let made = record(key, time, &time.to_le_bytes());
    writer.insert(key, xxh3_64(key), made.view(), false, sequence)
}

fn get<'a>(memtable: &'a Memtable, key: &[u8]) -> Option<RecordRef<'a>> {
    memtable.get(key, xxh3_64(key))
}

/// Time of the newest record of `key` that an iterator at `sequence` returns.
fn iterated_time(memtable: &Arc<Memtable>, key: &[u8], sequence: u64) -> Option<u64> {
    let mut iter = MemtableIter::new(Arc::clone(memtable), sequence);
    iter.seek(key);
    (iter.valid() && iter.key() == key).then(|| iter.record().version().time)
}

#[test]
fn the_newest_version_is_found_in_any_order_of_arrival() {
    let (memtable, mut writer) = Memtable::new(1 << 16);
    for (sequence, time) in [5, 9, 2, 7].into_iter().enumerate() {
        insert(&mut writer, b"k", time, sequence as u64 + 1);
    }
    assert_eq!(get(&memtable, b"k").unwrap().version().time, 9);
    assert_eq!(iterated_time(&memtable, b"k", u64::MAX), Some(9));
    assert_eq!(iterated_time(&memtable, b"k", 1), Some(5), "a snapshot sees its moment");
    assert_eq!(iterated_time(&memtable, b"k", 0), None);
    assert!(get(&memtable, b"j").is_none());
    assert!(get(&memtable, b"kk").is_none());
    assert_eq!(memtable.sequences(), Some((1, 4)));
    assert_eq!(writer.max_version().time, 9);
}

#[test]
fn a_duplicate_is_stored_once_and_a_conflict_is_reported() {
    let (memtable, mut writer) = Memtable::new(1 << 16);
    assert_eq!(insert(&mut writer, b"k", 1, 1), InsertOutcome::New);
    let used = memtable.used_bytes();
    assert_eq!(insert(&mut writer, b"k", 1, 2), InsertOutcome::Duplicate);
    assert_eq!(memtable.used_bytes(), used);
    let other = record(b"k", 1, b"something else");
    assert_eq!(writer.insert(b"k", xxh3_64(b"k"), other.view(), false, 3), InsertOutcome::Conflict);
}

/// Records that conditional writes derive from one plain write conflict neither with the plain
/// record nor with each other.
#[test]
fn the_greatest_ballot_of_a_version_is_found_in_any_order_of_arrival() {
    let made = |ballot| {
        let version = Version { time: 5, origin: 1 };
        Record::new(b"k", &Fields { ballot, step: 1, ..Fields::new(Kind::Value, version) }, b"")
    };
    for order in [[0, 7, 8], [8, 7, 0], [7, 0, 8], [7, 8, 0], [0, 8, 7], [8, 0, 7]] {
        let (memtable, mut writer) = Memtable::new(1 << 16);
        let mut greatest = 0;
        for (ballot, sequence) in order.into_iter().zip(1..) {
            let inserted = writer.insert(b"k", 1, made(ballot).view(), false, sequence);
            assert_eq!(inserted, InsertOutcome::New, "ballot {ballot} of {order:?}");
            greatest = greatest.max(ballot);
            assert_eq!(memtable.get(b"k", 1).unwrap().ballot(), greatest, "{order:?}");
            assert_eq!(writer.max_write_time(), greatest.max(5));
        }
        for (i, ballot) in order.into_iter().enumerate() {
            let again = writer.insert(b"k", 1, made(ballot).view(), false, 4);
            assert_eq!(again, InsertOutcome::Duplicate);
            let mut iter = MemtableIter::new(Arc::clone(&memtable), i as u64 + 1);
            iter.seek(b"k");
            let seen = iter.record().ballot();
            assert_eq!(Some(&seen), order[..=i].iter().max(), "a snapshot sees its moment");
        }
        assert_eq!(writer.max_version().time, 5);
    }
}

#[test]
fn reads_find_all_keys_if_hashes_collide_or_the_index_is_full() {
    let (memtable, mut writer) = Memtable::new(if cfg!(miri) { 4 << 10 } else { 64 << 10 });
    let mut keys: u32 = 0;
    while writer.fits(MemtableWriter::bound(4, 64)) {
        let key = keys.to_be_bytes();
        let made = record(&key, 1, b"");
        writer.insert(&key, u64::from(keys / 100), made.view(), false, 1);
        keys += 1;
    }
    for i in 0..keys + 10 {
        let found = memtable.get(&i.to_be_bytes(), u64::from(i / 100));
        assert_eq!(found.is_some(), i < keys, "key {i} of {keys}");
    }
}

#[test]
fn the_memtable_iterates_like_a_sorted_map() {
    let (memtable, mut writer) = Memtable::new(1 << 20);
    let mut model = BTreeMap::new();
    let mut random = 12345u64;
    let rounds = if cfg!(miri) { 60 } else { 3000 };
    for sequence in 1..=rounds {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (random >> 40) as u16 % 500;
        let time = random >> 50;
        insert(&mut writer, &key.to_be_bytes(), time, sequence);
        let newest = model.entry(key).or_insert(time);
        *newest = (*newest).max(time);
    }
    let mut iter = MemtableIter::new(Arc::clone(&memtable), u64::MAX);
    iter.seek_to_first();
    let mut seen = Vec::new();
    while iter.valid() {
        let key = u16::from_be_bytes(iter.key().try_into().unwrap());
        seen.push((key, iter.record().version().time));
        iter.next();
    }
    assert_eq!(seen, model.clone().into_iter().collect::<Vec<_>>());
    for probe in 0..510u16 {
        iter.seek(&probe.to_be_bytes());
        let expected = model.range(probe..).next().map(|(key, _)| key.to_be_bytes().to_vec());
        assert_eq!(iter.valid().then(|| iter.key().to_vec()), expected);
    }
}

#[test]
fn readers_see_whole_records_while_one_writes() {
    let (memtable, mut writer) = Memtable::new(1 << 20);
    let rounds: u32 = if cfg!(miri) { 40 } else { 5000 };
    thread::scope(|scope| {
        for _ in 0..2 {
            let memtable = Arc::clone(&memtable);
            scope.spawn(move || {
                let mut found = 0;
                while found < rounds {
                    let key = found.to_be_bytes();
                    if let Some(record) = get(&memtable, &key) {
                        record.verify(&key).unwrap();
                        found += 1;
                    }
                    if cfg!(miri) {
                        thread::yield_now();
                    }
                }
            });
        }
        for i in 0..rounds {
            insert(&mut writer, &i.to_be_bytes(), u64::from(i), u64::from(i) + 1);
        }
    });
}
