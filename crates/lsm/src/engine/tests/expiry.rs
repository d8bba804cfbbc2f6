//! Values with an expiry. The engine keeps them as all others and gives them out expired or not:
//! what that means is for who reads them. Only a compaction that may drop them looks at it.

use std::sync::Mutex;

use super::*;

/// A version's time for these milliseconds since 1970.
fn time_of(millis: u64) -> u64 {
    (millis * 1000) << 12
}

fn put(engine: &Engine, space: Space, key: &[u8], fields: &Fields<'_>) {
    let mut batch = Batch::new();
    batch.write(space, key, fields, b"v").unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
}

fn expires(time: u64, expiry_ms: u64) -> Fields<'static> {
    Fields { expiry_ms, ..Fields::new(Kind::Value, version(time)) }
}

fn flush(engine: &Engine) {
    engine.rotate_all();
    engine.flush_one().unwrap();
}

/// Two tables whose keys overlap, so that a compaction merges them.
fn two_tables(engine: &Engine, space: Space, keys: &[(&[u8], Fields<'_>)]) {
    for (key, fields) in keys {
        put(engine, space, key, fields);
    }
    flush(engine);
    put(engine, space, b"a", &Fields::new(Kind::Value, version(1)));
    put(engine, space, b"z", &Fields::new(Kind::Value, version(1)));
    flush(engine);
}

/// What a purge is asked, in order: space, key and time.
type Questions = Arc<Mutex<Vec<(Space, Vec<u8>, u64)>>>;

/// Options whose purge is noted, and allowed or not.
fn noting(allowed: bool) -> (Options, Questions) {
    let asked = Questions::default();
    let noted = Arc::clone(&asked);
    let may_purge: crate::MayPurge = Arc::new(move |space, key, time| {
        noted.lock().unwrap().push((space, key.to_vec(), time));
        allowed
    });
    (Options { may_purge, new_tree_bits: 0, ..small_options() }, asked)
}

#[test]
fn a_value_may_go_by_its_expiry_if_that_is_later_than_it_was_written() {
    let (options, asked) = noting(false);
    let engine = open(&MemDisk::new(), &options);
    let late = time_of(8);
    let steps = |ballot| Some(Steps { ballot, step: 1, operations: &[] });
    let keys = [
        (&b"b"[..], expires(5, 9)),
        (b"c", expires(late, 7)),
        (b"d", Fields { steps: steps(late), ..expires(5, 7) }),
        (b"e", Fields { steps: steps(5), ..expires(5, 9) }),
        (b"f", Fields::new(Kind::Value, version(5))),
        (b"g", expires(5, u64::MAX)),
    ];
    two_tables(&engine, Space::Data, &keys);
    engine.compact_all().unwrap();
    let far = (u64::MAX >> 12) << 12;
    let expected =
        [(b"b", time_of(9)), (b"c", late), (b"d", late), (b"e", time_of(9)), (b"g", far)];
    let expected = expected.map(|(key, time)| (Space::Data, key.to_vec(), time));
    assert_eq!(*asked.lock().unwrap(), expected, "one without an expiry is never asked for");
    assert!(keys.iter().all(|(key, _)| get(&engine, key).is_some()), "none was allowed to go");
}

#[test]
fn a_value_with_an_expiry_goes_only_when_allowed_and_nothing_of_its_key_is_left() {
    for allowed in [false, true] {
        let (options, _) = noting(allowed);
        let engine = open(&MemDisk::new(), &options);
        two_tables(&engine, Space::Data, &[(b"b", expires(5, 9)), (b"c", expires(5, 9))]);
        // Late: older than what goes, and would be found in its place.
        put(&engine, Space::Data, b"c", &Fields::new(Kind::Value, version(4)));
        engine.compact_all().unwrap();
        assert_eq!(get(&engine, b"b").is_none(), allowed);
        let held = get(&engine, b"c").unwrap();
        assert_eq!(held.version, version(5), "it hides what is in the memtable");
    }
}

#[test]
fn a_value_with_an_expiry_hides_older_ones_below_it() {
    let (options, _) = noting(true);
    let options = Options { level1_bytes: 1, ..options };
    let engine = open(&MemDisk::new(), &options);
    two_tables(&engine, Space::Data, &[(b"k", Fields::new(Kind::Value, version(1)))]);
    while engine.compact_one().unwrap() == Work::Done {}
    two_tables(&engine, Space::Data, &[(b"k", expires(2, 9))]);
    assert_eq!(engine.compact_one().unwrap(), Work::Done);
    assert_eq!(get(&engine, b"k").unwrap().version, version(2));
}

/// A hint is a value that holds a record; the node's own state is its own.
#[test]
fn other_spaces_have_no_expiry() {
    for space in [Space::Hints, Space::Node] {
        let (options, asked) = noting(true);
        let engine = open(&MemDisk::new(), &options);
        two_tables(&engine, space, &[(b"b", expires(5, 9))]);
        engine.compact_all().unwrap();
        assert!(matches!(engine.get(space, b"b", Wait::Yes).unwrap(), Lookup::Found(_)));
        assert_eq!(*asked.lock().unwrap(), []);
    }
}
