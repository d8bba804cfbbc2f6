//! The bytes of whole stores, as files checked in, one of each format: every release reads them,
//! and this one writes the newest for the same input. A change of format shows here before it
//! reaches anyone's data.

use std::path::PathBuf;

use lsm::disk::{Fault, Op};
use lsm::{Db, Fields, Kind, MemDisk, Operation, Options, Record, Space, SyncMode};

use super::model::{Model, Write, batch, open, version};

const FILES: [&str; 5] =
    ["STORE", "MANIFEST", "0000000001.wal", "0000000001.sst", "0000000002.sst"];

/// The format that this release writes.
const NEWEST: u32 = 3;

fn directory(format: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/store-v{format}"))
}

fn options() -> Options {
    Options {
        new_store_id: 0x0123_4567_89ab_cdef,
        new_tree_bits: 1,
        sync: SyncMode::Always,
        memtable_bytes: 64 << 10,
        segment_bytes: 4096,
        // LZ4 may come to find other matches without a change of format.
        compress: false,
        ..Options::default()
    }
}

/// What is flushed, and the record with every field that goes with it.
fn first_life(format: u32) -> (Vec<Vec<Write>>, Fields<'static>) {
    let mut hint = Write::put(b"hint", 3, b"for another".to_vec());
    hint.space = Space::Hints;
    let mut writes = vec![
        vec![Write::put(b"alpha", 1, b"one".to_vec()), Write::put(b"beta", 2, vec![])],
        vec![hint, Write::delete(b"beta", 4)],
        vec![Write::put(b"\0\xff", 5, vec![0xa5; 100])],
    ];
    if format >= 2 {
        let mut counter = Write::put(b"counter", 2, b"41".to_vec());
        counter.ballot = 9;
        writes.push(vec![counter]);
    }
    if format >= 3 {
        let mut superseded = Write::delete(b"elsewhere", 3);
        superseded.kind = Kind::Superseded;
        writes.push(vec![superseded]);
    }
    (writes, all_fields(format))
}

/// What stays in the log.
fn second_life(format: u32) -> Vec<Vec<Write>> {
    let mut writes =
        vec![vec![Write::put(b"alpha", 6, b"two".to_vec())], vec![Write::delete(b"gone", 7)]];
    if format >= 2 {
        let mut counter = Write::put(b"counter", 2, b"42".to_vec());
        counter.ballot = 10;
        writes.push(vec![counter]);
    }
    writes
}

fn expected(format: u32) -> Model {
    let (first, fields) = first_life(format);
    let mut model = Model::default();
    for writes in first.iter().chain(&second_life(format)) {
        model.apply(writes);
    }
    let record = Record::new(b"full", &fields, b"with every field");
    model.0.insert((Space::Data, b"full".to_vec()), record);
    model
}

const OPERATIONS: [Operation; 2] = [
    Operation { id: 11, result: Some(-12), digest: 0 },
    Operation { id: 13, result: None, digest: 0 },
];

fn all_fields(format: u32) -> Fields<'static> {
    let (ballot, step, operations) = match format {
        1 => (0, 0, &[][..]),
        _ => (14, 15, &OPERATIONS[..]),
    };
    Fields {
        kind: Kind::Value,
        version: version(8),
        ballot,
        step,
        operations,
        copies: 3,
        expiry_ms: 4_102_444_800_000,
        extension: b"later",
    }
}

/// The store that the fixture is a copy of, made step by step so that no thread has a choice: a
/// flush of both trees, everything after it in the log, a clean end on a disk that has no room for
/// another table.
fn make() -> MemDisk {
    let disk = MemDisk::new();
    let db = open(&disk, &options()).unwrap();
    let (first, full) = first_life(NEWEST);
    first.iter().for_each(|writes| db.write_batch(batch(writes)).unwrap());
    write_full(&db, &full);
    db.flush().unwrap();
    second_life(NEWEST).iter().for_each(|writes| db.write_batch(batch(writes)).unwrap());
    disk.fail(Fault::forever(Op::Create, 28).suffix(".sst"));
    db.close().unwrap();
    disk.clear_faults();
    disk
}

fn write_full(db: &Db, fields: &Fields<'_>) {
    let mut batch = lsm::Batch::new();
    batch.write(Space::Data, b"full", fields, b"with every field").unwrap();
    db.write_batch(batch).unwrap();
}

fn fixture(format: u32) -> MemDisk {
    let disk = MemDisk::new();
    for name in FILES {
        let path = directory(format).join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        disk.put_file(name, bytes);
    }
    disk
}

/// Set `KVORUM_WRITE_FIXTURES` to write them anew, after a change of format with a new version.
#[test]
fn the_bytes_written_are_those_of_the_fixture() {
    let disk = make();
    for name in FILES {
        let bytes = disk.file(name).unwrap_or_else(|| panic!("there is no {name}"));
        let path = directory(NEWEST).join(name);
        if std::env::var_os("KVORUM_WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(directory(NEWEST)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let expected = std::fs::read(&path).unwrap();
        let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(at, None, "{name} differs at this byte");
        assert_eq!(bytes.len(), expected.len(), "{name} has another length");
    }
}

#[test]
fn the_stores_of_all_releases_are_read() {
    for format in 1..=NEWEST {
        let disk = fixture(format);
        let db = open(&disk, &options()).unwrap();
        expected(format).check(&db);
        let full = db.get(Space::Data, b"full").unwrap().unwrap();
        let (view, fields) = (full.view(), all_fields(format));
        assert_eq!((view.copies(), view.expiry_ms()), (fields.copies, fields.expiry_ms));
        assert_eq!(view.extension(), fields.extension);
        let steps = view.steps();
        assert_eq!((view.ballot(), steps.step), (fields.ballot, fields.step));
        assert_eq!(steps.operations, fields.operations);
        db.compact().unwrap();
        expected(format).check(&db);
        drop(db);
        expected(format).check(&open(&disk, &options()).unwrap());
    }
}

/// A store of an earlier format takes what conditional writes make, and says when it was written.
#[test]
fn an_older_store_goes_on_in_the_newest_format() {
    let disk = fixture(1);
    let db = open(&disk, &options()).unwrap();
    let mut model = expected(1);
    assert_eq!(db.engine().greatest_time(), 8);
    for (key, time, ballot) in [(b"alpha", 6, 20), (b"gamma", 3, 30)] {
        let mut write = Write::put(key, time, b"by a condition".to_vec());
        write.ballot = ballot;
        db.write_batch(batch(std::slice::from_ref(&write))).unwrap();
        model.apply(&[write]);
        model.check(&db);
        db.flush().unwrap();
        model.check(&db);
    }
    db.close().unwrap();
    let db = open(&disk, &options()).unwrap();
    model.check(&db);
    assert_eq!(db.engine().greatest_time(), 30);
    db.compact().unwrap();
    model.check(&db);
}
