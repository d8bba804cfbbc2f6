//! Tests of values with an expiry. The engine stores and returns expired values like all values,
//! and the reader decides whether a value has expired. Only purging compactions consider the
//! expiry.

use super::*;

fn put(engine: &Engine, space: Space, key: &[u8], fields: &Fields<'_>) {
    let mut batch = Batch::new();
    batch.write(space, key, fields, b"v").unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
}

fn fields_with_expiry(time: u64, expiry_ms: u64) -> Fields<'static> {
    Fields { expiry_ms, ..Fields::new(Kind::Value, version(time)) }
}

fn flush(engine: &Engine) {
    engine.rotate_all();
    engine.flush_one().unwrap();
}

/// Writes two tables whose keys overlap, so that a compaction merges them.
fn write_two_tables(engine: &Engine, space: Space, keys: &[(&[u8], Fields<'_>)]) {
    for (key, fields) in keys {
        put(engine, space, key, fields);
    }
    flush(engine);
    put(engine, space, b"a", &Fields::new(Kind::Value, version(1)));
    put(engine, space, b"z", &Fields::new(Kind::Value, version(1)));
    flush(engine);
}

/// Options that permit purging everything, or nothing.
fn purge_options(allowed: bool) -> Options {
    let purge = if allowed { PurgeRule::always() } else { PurgeRule::never() };
    Options { purge: Arc::new(purge), new_tree_bits: 0, ..small_options() }
}

#[test]
fn an_expired_value_is_purged_only_if_allowed_and_no_other_record_of_its_key_exists() {
    for allowed in [false, true] {
        let engine = open(&MemDisk::new(), &purge_options(allowed));
        write_two_tables(
            &engine,
            Space::Data,
            &[(b"b", fields_with_expiry(5, 9)), (b"c", fields_with_expiry(5, 9))],
        );
        // A late record, which a read would find if the newer, expired record were purged.
        put(&engine, Space::Data, b"c", &Fields::new(Kind::Value, version(4)));
        engine.compact_all().unwrap();
        assert_eq!(get(&engine, b"b").is_none(), allowed);
        let held = get(&engine, b"c").unwrap();
        assert_eq!(held.version, version(5), "it hides what is in the memtable");
    }
}

#[test]
fn an_expiring_value_hides_older_records_below_it() {
    let options = Options { level1_bytes: 1, ..purge_options(true) };
    let engine = open(&MemDisk::new(), &options);
    write_two_tables(&engine, Space::Data, &[(b"k", Fields::new(Kind::Value, version(1)))]);
    while engine.compact_one().unwrap() == StepOutcome::Done {}
    write_two_tables(&engine, Space::Data, &[(b"k", fields_with_expiry(2, 9))]);
    assert_eq!(engine.compact_one().unwrap(), StepOutcome::Done);
    assert_eq!(get(&engine, b"k").unwrap().version, version(2));
}

/// The expiry of a hint is that of the record inside the hint, and the node's state has no expiry.
#[test]
fn other_spaces_have_no_expiry() {
    for space in [Space::Hints, Space::Node] {
        let engine = open(&MemDisk::new(), &purge_options(true));
        write_two_tables(&engine, space, &[(b"b", fields_with_expiry(5, 9))]);
        engine.compact_all().unwrap();
        assert!(matches!(engine.get(space, b"b", ReadMode::Blocking).unwrap(), Lookup::Found(_)));
    }
}
