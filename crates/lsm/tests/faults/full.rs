//! Row 9 of `docs/results/reliability.md`: the disk fills up. Reads are served, writes are refused
//! for lack of space, all acknowledged writes exist, and writes resume automatically once there is
//! space.

use std::time::{Duration, Instant};

use lsm::{Db, MemDisk, SyncMode};

use super::model::{History, Model, Random, batch, effort, open, small, wait_for};

/// Initial capacity of the disk in bytes. Each time the disk is full, it gains `GAIN` bytes.
const CAPACITY: u64 = 400 << 10;
const GAIN: u64 = 200 << 10;
/// Time limit for a refusal: a slower refusal would block the event loop or the caller.
const MAX_REFUSAL_TIME: Duration = Duration::from_secs(2);

struct Filler {
    model: Model,
    history: History,
    random: Random,
}

impl Filler {
    fn new(seed: u64) -> Self {
        let (model, history) = (Model::default(), History::default());
        Self { model, history, random: Random::new(seed) }
    }

    /// Retries until a write is accepted; returns the time that this took.
    fn resume(&mut self, db: &Db) -> Duration {
        let begun = Instant::now();
        let writes = self.history.next(&mut self.random).to_vec();
        while let Err(error) = db.write_batch(batch(&writes)) {
            assert!(error.is_no_space(), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(10), "{error}, although there is room");
            std::thread::yield_now();
        }
        self.model.apply(&writes);
        begun.elapsed()
    }

    /// Writes until the disk is full.
    fn fill(&mut self, db: &Db) {
        let mut taken = 0;
        loop {
            let writes = self.history.next(&mut self.random).to_vec();
            let begun = Instant::now();
            match db.write_batch(batch(&writes)) {
                Ok(()) => {
                    self.model.apply(&writes);
                    taken += 1;
                    assert!(taken < 100_000, "the disk never fills up");
                }
                Err(error) => {
                    assert!(error.is_no_space(), "{error}");
                    assert!(
                        begun.elapsed() < MAX_REFUSAL_TIME,
                        "refused after {:?}",
                        begun.elapsed()
                    );
                    return;
                }
            }
        }
    }
}

fn fill_and_make_room(sync: SyncMode, seed: u64) {
    let disk = MemDisk::new();
    let options = small(sync, 1);
    let db = open(&disk, &options).unwrap();
    let mut filler = Filler::new(seed);
    let mut slowest = Duration::ZERO;
    for turn in 0..5 {
        disk.set_capacity(Some(CAPACITY + turn * GAIN));
        slowest = slowest.max(filler.resume(&db));
        filler.fill(&db);
        filler.model.check(&db);
        assert_eq!(db.stats().failed, None, "a full disk is no failure");
    }
    println!("row 9 {sync:?}: full 5 times, writes resumed within {slowest:?}");
    // The process is killed on the full disk: opening fails with the reason, and the attempts lose
    // nothing.
    let restarted = disk.process_crash();
    drop(db);
    for _ in 0..3 {
        match open(&restarted, &options) {
            Ok(db) => filler.model.check(&db),
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
    }
    restarted.set_capacity(None);
    let db = open(&restarted, &options).unwrap();
    filler.model.check(&db);
    db.compact().unwrap();
    filler.model.check(&db);
    check_no_orphans(&restarted, &db);
    drop(db);
    filler.model.check(&open(&restarted.crash(seed), &options).unwrap());
}

/// Checks that every table on the disk is part of the store, and that no extra segments exist.
fn check_no_orphans(disk: &MemDisk, db: &Db) {
    let files = |ending: &str| {
        let names = lsm::Disk::list(disk).unwrap();
        names.iter().filter(|name| name.ends_with(ending)).count() as u64
    };
    let tables = || db.stats().levels.iter().map(|level| level.tables).sum::<u64>();
    wait_for("no orphaned table", || db.is_idle() && files(".sst") == tables());
    wait_for("no orphaned segment", || files(".wal") <= db.stats().wal_segments + 1);
}

#[test]
fn a_full_disk_refuses_writes_keeps_all_records_and_recovers_once_space_is_free() {
    for seed in 1..=effort() {
        fill_and_make_room(SyncMode::Always, seed);
        fill_and_make_room(SyncMode::Never, seed);
    }
}

/// Repeatedly filling and freeing the same store leaves no files behind.
#[test]
fn filling_the_disk_repeatedly_leaves_no_unnamed_tables() {
    let disk = MemDisk::new();
    let options = small(SyncMode::Always, 1);
    let db = open(&disk, &options).unwrap();
    let mut filler = Filler::new(9);
    for _ in 0..6 {
        disk.set_capacity(Some(400 << 10));
        filler.fill(&db);
        filler.model.check_gets(&db);
        disk.set_capacity(None);
        filler.resume(&db);
        db.compact().unwrap();
        check_no_orphans(&disk, &db);
        filler.model.check(&db);
    }
}
