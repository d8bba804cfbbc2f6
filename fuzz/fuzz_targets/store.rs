//! Shared parts of the targets `wal` and `table`: small stores on in-memory disks, and all ways of
//! reading them.

use std::sync::Arc;

use lsm::{
    Batch, Engine, Error, Fields, Kind, MemDisk, Operation, Options, ReadMode, ScanItem, Space,
    SyncMode, Version,
};

/// Id of the stores created here.
pub const STORE_ID: u64 = 0x0123_4567_89ab_cdef;

pub const SPACES: [Space; 5] =
    [Space::Data, Space::Hints, Space::Node, Space::Conditions, Space::Idempotency];

/// Returns options for small stores, so that the code under test takes most of the time of a run.
pub fn options(compress: bool) -> Options {
    Options {
        new_store_id: STORE_ID,
        new_tree_bits: 1,
        sync: SyncMode::Always,
        memtable_bytes: 16 << 10,
        cache_bytes: 64 << 10,
        segment_bytes: 4 << 10,
        block_bytes: 512,
        compress,
        table_bytes: 16 << 10,
        ..Options::default()
    }
}

pub fn open(disk: &MemDisk, compress: bool) -> Result<Engine, Error> {
    Engine::open(Arc::new(disk.clone()), options(compress))
}

/// Returns the result, or `None` for an error that the stored bytes can cause. Panics on any other
/// error.
pub fn ok_unless_corrupt<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(done) => Some(done),
        Err(Error::Corrupt { .. } | Error::NewerFormat { .. } | Error::OlderFormat { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Space, key and record of an entry, without the record's first two bytes, which each node sets
/// itself.
pub type Entry = (Space, Vec<u8>, Vec<u8>);

/// Reads all entries of the store.
pub fn contents(engine: &Engine) -> Result<Vec<Entry>, Error> {
    let (snapshot, mut found) = (engine.snapshot(), Vec::new());
    for space in SPACES {
        let mut scan = snapshot.scan(space, b"", None);
        while let Some((key, record)) = scan.next()? {
            found.push((space, key.to_vec(), record.raw()[2..].to_vec()));
        }
    }
    Ok(found)
}

/// Reads the store in all ways other than [`contents`].
pub fn read_in_other_ways(engine: &Engine, keys: &[&[u8]]) {
    let snapshot = engine.snapshot();
    for space in SPACES {
        let mut scan = snapshot.verified_scan(space, b"", None, 0);
        while let Some(seen) = scan.next() {
            if let ScanItem::Record(key, record) = seen {
                let _ = (record.verify(key), record.expiry_ms(), record.extension());
                let _ = record.op_history();
            }
        }
        let mut since = snapshot.verified_scan(space, b"b", Some(b"m"), 5);
        while since.next().is_some() {}
        for key in keys {
            for mode in [ReadMode::NonBlocking, ReadMode::Limited(64), ReadMode::Blocking] {
                ok_unless_corrupt(engine.get(space, key, mode));
            }
            ok_unless_corrupt(engine.holds_newer(space, key, Version { time: 4, origin: 1 }));
            ok_unless_corrupt(snapshot.scan(space, key, None).next().map(|_| ()));
        }
    }
}

/// Commits one group for each time in `times`: alternately a value and a tombstone.
pub fn write(engine: &Engine, times: std::ops::Range<u64>) {
    let operations = [(11, Some(-12)), (13, None)];
    let operations = operations.map(|(id, result)| Operation { id, result, digest: 0 });
    for time in times {
        let (mut batch, kind) = (Batch::new(), [Kind::Value, Kind::Tombstone][time as usize % 2]);
        let mut fields = Fields::new(kind, Version { time, origin: 1 });
        if time % 3 == 0 {
            (fields.ballot, fields.step, fields.operations) = (time + 1, 2, &operations);
        }
        if time % 4 == 0 {
            (fields.expiry_ms, fields.extension, fields.copies) = (4_102_444_800_000, b"later", 3);
        }
        let key = format!("{:?} {}", kind, time * 7 % 10);
        let value = if kind == Kind::Value { vec![time as u8; time as usize * 5] } else { vec![] };
        let space = SPACES[time as usize % 3 % SPACES.len()];
        batch.write(space, key.as_bytes(), &fields, &value).expect("within all limits");
        engine.commit([&batch].into_iter()).expect("nothing fails in memory");
    }
}
