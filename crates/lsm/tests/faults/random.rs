//! Row 14 of `docs/results/reliability.md`: random operations compared with a sorted map, through
//! all interfaces of the store, with restarts, kills, power cuts, flushes, compactions, and
//! versions in any order.

use std::sync::Arc;

use lsm::{Db, Kind, MemDisk, Options, PurgeRule, Record, Snapshot, Space, SyncMode};

use super::model::{Model, Random, Write, batch, effort, open, small, wait_for};

const SPACES: [Space; 3] = [Space::Data, Space::Hints, Space::Node];

struct Session {
    disk: MemDisk,
    options: Options,
    db: Option<Db>,
    model: Model,
    /// Snapshots with their expected content.
    snapshots: Vec<(Snapshot, Model)>,
    random: Random,
    now: u64,
    /// Base versions of the conditional writes.
    families: [u64; 4],
    operations: u64,
}

impl Session {
    fn begin(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut options = small(SyncMode::Always, random.below(3) as u8);
        options.compress = random.below(2) == 0;
        options.bloom_bits = [0, 10][random.below(2) as usize];
        options.cache_bytes = [0, 64 << 10, 1 << 20][random.below(3) as usize];
        let disk = MemDisk::new();
        let db = Some(open(&disk, &options).unwrap());
        let (model, snapshots) = (Model::default(), Vec::new());
        let (now, families) = (1 << 20, [1, 1 << 10, 1 << 19, 1 << 20]);
        Self { disk, options, db, model, snapshots, random, now, families, operations: 0 }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open but for a moment")
    }

    fn key(&mut self) -> Vec<u8> {
        // Some keys are prefixes of others, some are long, and one has no printable bytes.
        match self.random.below(20) {
            0 => vec![0],
            1 => vec![b'k'; 1 + self.random.below(200) as usize],
            2 => vec![0xff; 1 + self.random.below(5) as usize],
            _ => format!("key{}", self.random.below(250)).into_bytes(),
        }
    }

    fn write(&mut self) -> Write {
        self.now += 1;
        let time = match self.random.below(3) {
            // A late record: older than records in any memtable or table.
            0 => 1 + self.random.below(self.now),
            // A repeated version: the content decides, identically on every node.
            1 if self.random.below(8) == 0 => self.now - 1,
            _ => self.now,
        };
        let key = self.key();
        let len = match self.random.below(60) {
            0 => 4000 + self.random.below(20_000),
            _ => self.random.below(150),
        };
        let fill = self.random.below(256) as u8;
        let mut write = Write::put(&key, time, vec![fill; len as usize]);
        if self.random.below(5) == 0 {
            write = Write::delete(&key, time);
        }
        write.space = SPACES[self.random.below(3) as usize];
        if self.random.below(4) == 0 {
            // A conditional write that continues an older record. Two conditional writes may have
            // the same base version.
            write.ballot = self.now - self.random.below(3);
            write.time = self.families[self.random.below(self.families.len() as u64) as usize];
        } else if self.random.below(50) == 0 {
            let family = self.random.below(self.families.len() as u64) as usize;
            self.families[family] = write.time;
        }
        write
    }

    fn step(&mut self) {
        self.operations += 1;
        match self.random.below(1000) {
            0..700 => {
                let writes: Vec<_> = (0..1 + self.random.below(4)).map(|_| self.write()).collect();
                self.db().write_batch(batch(&writes)).unwrap();
                self.model.apply(&writes);
            }
            700..850 => self.get(),
            850..950 => self.scan(),
            950..970 => self.db().flush().unwrap(),
            970..976 => self.db().compact().unwrap(),
            976..990 => self.snapshots.push((self.db().snapshot(), self.model.clone())),
            990..996 => self.check_snapshot(),
            _ => self.restart(),
        }
    }

    fn get(&mut self) {
        let (space, key) = (SPACES[self.random.below(3) as usize], self.key());
        let found = self.db().get(space, &key).unwrap();
        let expected = self.model.0.get(&(space, key.clone()));
        assert_eq!(found.is_some(), expected.is_some(), "{space:?} {key:?}");
        if let (Some(found), Some(expected)) = (found, expected) {
            let same = found.view().order(&expected.view()).is_eq();
            assert!(same, "{space:?} {key:?}: {found:?}, expected {expected:?}");
            assert_eq!(found.value(), expected.value());
        }
    }

    fn scan(&mut self) {
        let space = SPACES[self.random.below(3) as usize];
        let (start, end) = (self.key(), self.key());
        let end = (self.random.below(4) > 0).then_some(end);
        let start = if self.random.below(4) == 0 { Vec::new() } else { start };
        let mut scan = self.db().scan(space, &start, end.as_deref());
        let within = |key: &&(Space, Vec<u8>)| {
            key.0 == space && key.1 >= start && end.as_ref().is_none_or(|end| key.1 < *end)
        };
        let mut expected = self.model.0.keys().filter(within);
        while let Some((key, record)) = scan.next().unwrap() {
            let at = expected.next().expect("a scan invents nothing");
            assert_eq!(key, at.1);
            assert!(record.order(&self.model.0[at].view()).is_eq(), "{key:?}");
        }
        assert_eq!(expected.next(), None, "a scan ended early");
    }

    fn check_snapshot(&mut self) {
        let Some((snapshot, expected)) = self.snapshots.pop() else { return };
        let mut found = Model::default();
        for space in SPACES {
            let mut scan = snapshot.scan(space, b"", None);
            while let Some((key, record)) = scan.next().unwrap() {
                found.0.insert((space, key.to_vec()), record.to_record());
            }
        }
        assert!(expected.same(&found), "a snapshot moved: {}", expected.difference(&found));
    }

    fn restart(&mut self) {
        self.snapshots.clear();
        let db = self.db.take().expect("open");
        self.disk = match self.random.below(4) {
            0 => {
                db.close().unwrap();
                self.disk.clone()
            }
            1 => {
                drop(db);
                self.disk.clone()
            }
            2 => self.disk.process_crash(),
            _ => self.disk.crash(self.random.below(1 << 30)),
        };
        self.db = Some(open(&self.disk, &self.options).unwrap());
    }
}

#[test]
fn the_store_equals_a_sorted_map() {
    let (mut operations, seeds) = (0, 6 * effort());
    for seed in 1..=seeds {
        let mut session = Session::begin(seed);
        for _ in 0..1500 {
            session.step();
        }
        session.model.check(session.db());
        session.db().compact().unwrap();
        session.model.check(session.db());
        session.restart();
        session.model.check(session.db());
        operations += session.operations;
    }
    println!("row 14: {operations} operations over {seeds} seeds, equal");
}

/// A late record must not hide a newer record, at any step, across every flush and level.
#[test]
fn a_late_record_never_hides_a_newer_record() {
    let steps: [fn(&Db); 3] = [|_| (), |db| db.flush().unwrap(), |db| db.compact().unwrap()];
    for first in [Kind::Value, Kind::Tombstone] {
        for late in [Kind::Value, Kind::Tombstone] {
            for between in steps {
                for after in steps {
                    let disk = MemDisk::new();
                    let options = small(SyncMode::Always, 0);
                    let db = open(&disk, &options).unwrap();
                    let mut model = Model::default();
                    for (kind, time) in [(first, 9), (late, 5), (late, 7)] {
                        let mut write = Write::put(b"k", time, vec![time as u8]);
                        if kind == Kind::Tombstone {
                            write = Write::delete(b"k", time);
                        }
                        db.write_batch(batch(&[write.clone()])).unwrap();
                        model.apply(&[write]);
                        between(&db);
                        model.check(&db);
                    }
                    after(&db);
                    model.check(&db);
                    drop(db);
                    model.check(&open(&disk, &options).unwrap());
                }
            }
        }
    }
}

/// Mistake 11 of `docs/results/reliability.md`: when tombstones may be purged, deleted keys stay
/// deleted, whichever levels hold their older records.
#[test]
fn deleted_keys_stay_deleted_when_tombstones_are_purged() {
    for seed in 1..=2 * effort() {
        let mut random = Random::new(seed);
        let disk = MemDisk::new();
        let options = Options {
            purge: Arc::new(PurgeRule::for_only_replica(0, 0, || u64::MAX)),
            compress: false,
            ..small(SyncMode::Never, 0)
        };
        let db = open(&disk, &options).unwrap();
        let mut model = Model::default();
        for time in 1..3000 {
            let key = format!("key{:03}", random.below(300)).into_bytes();
            let write = match random.below(3) {
                0 => Write::delete(&key, time),
                _ => Write::put(&key, time, vec![time as u8; 400]),
            };
            db.write_batch(batch(std::slice::from_ref(&write))).unwrap();
            model.apply(&[write]);
            if time % 100 == 0 {
                db.flush().unwrap();
            }
            if time % 300 == 0 {
                wait_for("idle", || db.is_idle());
                check_values(&db, &model);
            }
        }
        assert!(db.stats().levels[2].tables > 0, "nothing lies below another level");
        db.compact().unwrap();
        check_values(&db, &model);
    }
}

/// Checks that the store has exactly the model's values.
fn check_values(db: &Db, model: &Model) {
    for ((space, key), expected) in &model.0 {
        let found = db.get(*space, key).unwrap();
        let value = found.as_ref().filter(|record| record.view().kind() == Kind::Value);
        let expected = Some(expected).filter(|record| record.view().kind() == Kind::Value);
        assert_eq!(value.map(Record::value), expected.map(Record::value), "{key:?}: {found:?}");
    }
}
