//! The bytes of a whole store as checked-in files. Every release must read these files, and this
//! release writes the same bytes for the same input. A change of a format fails here before it
//! reaches user data; the new format gets a new fixture directory, and the old directory stays.

use std::path::PathBuf;

use lsm::disk::{Fault, Op};
use lsm::{Db, Fields, Kind, MemDisk, Operation, Options, Record, Space, SyncMode};

use super::model::{Model, Write, batch, open, version};

const FILES: [&str; 5] =
    ["STORE", "MANIFEST", "0000000001.wal", "0000000001.sst", "0000000002.sst"];

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store-v1")
}

fn options() -> Options {
    Options {
        new_store_id: 0x0123_4567_89ab_cdef,
        new_tree_bits: 1,
        sync: SyncMode::Always,
        memtable_bytes: 64 << 10,
        segment_bytes: 4096,
        // LZ4 may find other matches without a change of the format.
        compress: false,
        ..Options::default()
    }
}

/// The flushed batches, and the fields of a flushed record that has every field.
fn flushed_writes() -> (Vec<Vec<Write>>, Fields<'static>) {
    let mut hint = Write::put(b"hint", 3, b"for another".to_vec());
    hint.space = Space::Hints;
    let mut counter = Write::put(b"counter", 2, b"41".to_vec());
    counter.ballot = 9;
    let mut superseded = Write::delete(b"elsewhere", 3);
    superseded.kind = Kind::Superseded;
    let writes = vec![
        vec![Write::put(b"alpha", 1, b"one".to_vec()), Write::put(b"beta", 2, vec![])],
        vec![hint, Write::delete(b"beta", 4)],
        vec![Write::put(b"\0\xff", 5, vec![0xa5; 100])],
        vec![counter],
        vec![superseded],
    ];
    (writes, all_fields())
}

/// The batches that stay in the log.
fn logged_writes() -> Vec<Vec<Write>> {
    let mut counter = Write::put(b"counter", 2, b"42".to_vec());
    counter.ballot = 10;
    vec![
        vec![Write::put(b"alpha", 6, b"two".to_vec())],
        vec![Write::delete(b"gone", 7)],
        vec![counter],
    ]
}

fn expected_model() -> Model {
    let (first, fields) = flushed_writes();
    let mut model = Model::default();
    for writes in first.iter().chain(&logged_writes()) {
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

fn all_fields() -> Fields<'static> {
    Fields {
        kind: Kind::Value,
        version: version(8),
        ballot: 14,
        step: 15,
        operations: &OPERATIONS,
        copies: 3,
        expiry_ms: 4_102_444_800_000,
        extension: b"later",
    }
}

/// Creates the store of the fixture step by step, so that no thread influences the result: a flush
/// of both trees, all later writes in the log, and a clean stop on a disk without space for another
/// table.
fn make() -> MemDisk {
    let disk = MemDisk::new();
    let db = open(&disk, &options()).unwrap();
    let (first, full) = flushed_writes();
    first.iter().for_each(|writes| db.write_batch(batch(writes)).unwrap());
    write_full(&db, &full);
    db.flush().unwrap();
    logged_writes().iter().for_each(|writes| db.write_batch(batch(writes)).unwrap());
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

fn fixture() -> MemDisk {
    let disk = MemDisk::new();
    for name in FILES {
        let path = directory().join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        disk.put_file(name, bytes);
    }
    disk
}

/// Compares the fixture with the store that this release writes. Set `KVORUM_WRITE_FIXTURES` to
/// rewrite the fixture after a change of a format version.
#[test]
fn the_bytes_written_are_those_of_the_fixture() {
    let disk = make();
    for name in FILES {
        let bytes = disk.file(name).unwrap_or_else(|| panic!("there is no {name}"));
        let path = directory().join(name);
        if std::env::var_os("KVORUM_WRITE_FIXTURES").is_some() {
            std::fs::create_dir_all(directory()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let expected = std::fs::read(&path).unwrap();
        let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(at, None, "{name} differs at this byte");
        assert_eq!(bytes.len(), expected.len(), "{name} has another length");
    }
}

#[test]
fn the_store_of_the_fixture_is_read() {
    let disk = fixture();
    let db = open(&disk, &options()).unwrap();
    expected_model().check(&db);
    let full = db.get(Space::Data, b"full").unwrap().unwrap();
    let (view, fields) = (full.view(), all_fields());
    assert_eq!((view.copies(), view.expiry_ms()), (fields.copies, fields.expiry_ms));
    assert_eq!(view.extension(), fields.extension);
    let steps = view.op_history();
    assert_eq!((view.ballot(), steps.step), (fields.ballot, fields.step));
    assert_eq!(steps.operations, fields.operations);
    db.compact().unwrap();
    expected_model().check(&db);
    drop(db);
    expected_model().check(&open(&disk, &options()).unwrap());
}
