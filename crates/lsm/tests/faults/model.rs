//! The expected content of a store as a sorted map, and its comparison with the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm::{Batch, Db, Error, Fields, Kind, MemDisk, Options, Record, Space, SyncMode, Version};

/// Multiplier of the work, from `KVORUM_SEEDS`; 1 by default.
pub(crate) fn effort() -> u64 {
    std::env::var("KVORUM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A seeded generator of numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Options so small that a few hundred writes exercise every part of the engine.
pub(crate) fn small(sync: SyncMode, tree_bits: u8) -> Options {
    Options {
        new_store_id: 77,
        new_tree_bits: tree_bits,
        sync,
        memtable_bytes: 64 << 10,
        cache_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        block_bytes: 512,
        table_bytes: 16 << 10,
        level0_tables: 2,
        level1_bytes: 48 << 10,
        level_ratio: 4,
        ..Options::default()
    }
}

pub(crate) fn open(disk: &MemDisk, options: &Options) -> Result<Db, Error> {
    Db::open(Arc::new(disk.clone()), options.clone())
}

pub(crate) fn version(time: u64) -> Version {
    Version { time, origin: 1 }
}

/// Waits for a condition for at most ten seconds.
pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// The expected content of a store.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Model(pub(crate) BTreeMap<(Space, Vec<u8>), Record>);

/// A write that applies to a batch and to a model.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) space: Space,
    pub(crate) key: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) time: u64,
    /// 0 = a plain write.
    pub(crate) ballot: u64,
    pub(crate) value: Vec<u8>,
}

impl Write {
    pub(crate) fn put(key: &[u8], time: u64, value: Vec<u8>) -> Self {
        Self { space: Space::Data, key: key.to_vec(), kind: Kind::Value, time, ballot: 0, value }
    }

    pub(crate) fn delete(key: &[u8], time: u64) -> Self {
        let (key, value) = (key.to_vec(), Vec::new());
        Self { space: Space::Data, key, kind: Kind::Tombstone, time, ballot: 0, value }
    }

    pub(crate) fn fields(&self) -> Fields<'static> {
        let ballot = self.ballot;
        Fields { ballot, step: 1, ..Fields::new(self.kind, version(self.time)) }
    }
}

pub(crate) fn batch(writes: &[Write]) -> Batch {
    let mut batch = Batch::new();
    for write in writes {
        batch.write(write.space, &write.key, &write.fields(), &write.value).unwrap();
    }
    batch
}

impl Model {
    pub(crate) fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            let record = Record::new(&write.key, &write.fields(), &write.value);
            let held = self.0.entry((write.space, write.key.clone()));
            let held = held.or_insert_with(|| record.clone());
            if record.view().order(&held.view()).is_gt() {
                *held = record;
            }
        }
    }

    /// The content of a store, read by scans; stops at the first error.
    pub(crate) fn of(db: &Db) -> Result<Self, Error> {
        let mut model = Self::default();
        for space in [Space::Data, Space::Hints, Space::Node] {
            let mut scan = db.scan(space, b"", None);
            while let Some((key, record)) = scan.next()? {
                model.0.insert((space, key.to_vec()), record.to_record());
            }
        }
        Ok(model)
    }

    /// Returns true if all records are equal except for their node-local bytes.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let equal = |(a, b): (&Record, &Record)| {
            a.view().order(&b.view()).is_eq() && a.value() == b.value()
        };
        self.0.keys().eq(other.0.keys()) && self.0.values().zip(other.0.values()).all(equal)
    }

    /// Describes the differences between this model and the content of a store, for a message.
    pub(crate) fn difference(&self, found: &Self) -> String {
        let mut differences = Vec::new();
        for (key, record) in &self.0 {
            let held = found.0.get(key);
            if held.is_none_or(|held| !held.view().order(&record.view()).is_eq()) {
                differences.push(format!("{key:?}: {held:?}, expected {record:?}"));
            }
        }
        for (key, record) in &found.0 {
            if !self.0.contains_key(key) {
                differences.push(format!("{key:?}: invented {record:?}"));
            }
        }
        let count = differences.len();
        differences.truncate(5);
        format!("{count} differences: {differences:#?}")
    }

    /// Checks every key by a lookup.
    pub(crate) fn check_gets(&self, db: &Db) {
        for ((space, key), expected) in &self.0 {
            let found = db.get(*space, key).unwrap();
            let found = found.unwrap_or_else(|| panic!("{space:?} {key:?} is gone"));
            let same = found.view().order(&expected.view()).is_eq();
            assert!(same, "{space:?} {key:?}: {found:?}, expected {expected:?}");
        }
    }

    /// Checks the whole store by lookups and scans.
    pub(crate) fn check(&self, db: &Db) {
        self.check_gets(db);
        let found = Self::of(db).unwrap();
        assert!(self.same(&found), "{}", self.difference(&found));
    }
}

/// Batches in commit order. A recovered store must have the state after one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) batches: Vec<Vec<Write>>,
}

impl History {
    /// Generates a batch that overwrites, deletes and adds keys in three spaces. The last key is
    /// unique, so that the states after different batches differ.
    pub(crate) fn next(&mut self, random: &mut Random) -> &[Write] {
        let time = self.batches.len() as u64 + 1;
        let mut writes = Vec::new();
        for _ in 0..1 + random.below(3) {
            let key = format!("key{:02}", random.below(40)).into_bytes();
            let value = vec![time as u8; random.below(600) as usize];
            let mut write = Write::put(&key, time, value);
            if random.below(5) == 0 {
                write = Write::delete(&key, time);
            }
            write.space = [Space::Data, Space::Hints, Space::Node][random.below(3) as usize];
            writes.retain(|earlier: &Write| (earlier.space, &earlier.key) != (write.space, &key));
            writes.push(write);
        }
        writes.push(Write::put(format!("only{time:06}").as_bytes(), time, vec![1; 40]));
        self.batches.push(writes);
        self.batches.last().expect("just pushed")
    }

    /// Returns the number of batches, from the start of the history, that the store contains.
    /// Panics if the store's content is not the state after some batch.
    pub(crate) fn count_batches(&self, db: &Db) -> usize {
        let found = Model::of(db).unwrap();
        let mut model = Model::default();
        let own_key = |key: &&(Space, Vec<u8>)| key.1.starts_with(b"only");
        let moment = found.0.keys().filter(own_key).count();
        assert!(moment <= self.batches.len(), "batches were invented");
        for writes in &self.batches[..moment] {
            model.apply(writes);
        }
        assert!(model.same(&found), "not the state after {moment}: {}", model.difference(&found));
        model.check_gets(db);
        moment
    }
}
