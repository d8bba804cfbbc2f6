//! Rows 10–12 of `docs/results/reliability.md`: the Nth call of every kind, on every kind of file,
//! fails once or permanently.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lsm::disk::{Fault, Op};
use lsm::{Db, Error, MemDisk, Options, SyncMode};

use super::model::{History, Model, Random, Write, batch, effort, open, small, wait_for};

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

/// Suffixes of file names by kind; directory calls have no file name.
const FILES: [&str; 5] = [".wal", ".sst", "MANIFEST", ".tmp", ""];

/// Observations of one run under a fault.
#[derive(Default)]
struct Outcome {
    struck: bool,
    refused_open: bool,
    refused_writes: u64,
    failed: bool,
}

/// Executes rounds of writes, flushes, compactions and reads, even after errors. All acknowledged
/// writes must exist at the end, in this run of the process and in later runs.
fn run(options: &Options, fault: &Fault) -> Outcome {
    let disk = MemDisk::new();
    let mut outcome = Outcome::default();
    disk.fail(fault.clone());
    let opened = open(&disk, options);
    let mut acknowledged = Model::default();
    let mut attempted = Model::default();
    if let Ok(db) = &opened {
        work(db, &mut acknowledged, &mut attempted, &mut outcome);
    }
    outcome.refused_open = opened.is_err();
    outcome.struck = disk.pending_faults() == 0 || outcome.refused_open || outcome.failed;
    disk.clear_faults();
    if let Ok(db) = opened {
        // The disk works again: all data is readable, and writes are accepted unless the store
        // failed.
        check(&db, &acknowledged, &attempted);
        outcome.failed = db.stats().failed.is_some();
        let put = db.write_batch(batch(&[Write::put(b"once more", 1 << 30, vec![])]));
        assert_eq!(put.is_ok(), !outcome.failed, "{put:?}");
    }
    let mut restarts = vec![disk.process_crash()];
    if options.sync == SyncMode::Always {
        restarts.push(disk.crash(7));
    }
    for restarted in restarts {
        let db = open(&restarted, options).unwrap();
        check(&db, &acknowledged, &attempted);
        db.compact().unwrap();
        check(&db, &acknowledged, &attempted);
        drop(db);
        check(&open(&restarted.crash(8), options).unwrap(), &acknowledged, &attempted);
    }
    outcome
}

fn work(db: &Db, acknowledged: &mut Model, attempted: &mut Model, outcome: &mut Outcome) {
    let (mut history, mut random) = (History::default(), Random::new(3));
    for round in 1..=60 {
        let writes = history.next(&mut random);
        attempted.apply(writes);
        match db.write_batch(batch(writes)) {
            Ok(()) => {
                assert!(!outcome.failed, "a write was taken after the store had failed");
                acknowledged.apply(writes);
            }
            Err(error) => {
                outcome.refused_writes += 1;
                outcome.failed |= matches!(error, Error::Failed { .. });
            }
        }
        if round % 15 == 0 {
            // The outcome does not matter, only the data that can be read afterwards.
            let _ = if round % 30 == 0 { db.compact() } else { db.flush() };
            let _ = Model::of(db);
        }
    }
}

/// Checks, by reads of keys, that the store holds all acknowledged writes and no write that was not
/// attempted.
pub(crate) fn check(db: &Db, acknowledged: &Model, attempted: &Model) {
    let found = Model::of(db).unwrap();
    for (key, record) in &acknowledged.0 {
        let held = found.0.get(key).unwrap_or_else(|| panic!("{key:?} is lost"));
        assert!(held.view().order(&record.view()).is_ge(), "{key:?}: {held:?} < {record:?}");
        assert!(db.get(key.0, &key.1).unwrap().is_some());
    }
    for (key, record) in &found.0 {
        if key.1 == b"once more" {
            continue;
        }
        let last = attempted.0.get(key).unwrap_or_else(|| panic!("{key:?} is invented"));
        assert!(record.view().order(&last.view()).is_le(), "{key:?} is invented");
    }
}

#[test]
fn a_failure_of_any_call_loses_no_acknowledged_write() {
    let mut grid = BTreeMap::<String, [u64; 4]>::new();
    for sync in [SyncMode::Always, SyncMode::Never] {
        let options = small(sync, 1);
        for op in Op::ALL {
            for file in FILES {
                let directory = matches!(op, Op::List | Op::SyncDir);
                if directory != file.is_empty() {
                    continue;
                }
                for errno in errors_of(op) {
                    for after in (0..).map(|n| n + n * n / 4).take(6 + effort() as usize) {
                        let fault = Fault::once(op, errno).suffix(file).after(after);
                        let outcome = run(&options, &fault);
                        let name = format!("{op:?} {file} errno {errno}");
                        let cell = grid.entry(name).or_default();
                        cell[0] += 1;
                        cell[1] += u64::from(outcome.struck);
                        cell[2] += u64::from(outcome.refused_writes > 0 || outcome.refused_open);
                        cell[3] += u64::from(outcome.failed);
                    }
                }
            }
        }
    }
    let mut table = String::new();
    for (name, [runs, struck, refused, failed]) in &grid {
        let _ = writeln!(table, "{name:24} {runs:4} {struck:6} {refused:7} {failed:6}");
    }
    println!("row 11 call, file, error     runs struck refused failed\n{table}");
}

/// The errors to try with a kind of call.
fn errors_of(op: Op) -> Vec<i32> {
    match op {
        Op::Create | Op::Open => vec![EIO, EMFILE],
        Op::Write | Op::Allocate => vec![EIO, ENOSPC],
        _ => vec![EIO],
    }
}

/// Mistakes 8 and 9 of `docs/results/reliability.md`: no acknowledgement after a failed sync in the
/// same run of the process, and no retry.
#[test]
fn after_a_failed_write_or_sync_of_the_log_no_write_is_acknowledged_and_reads_continue() {
    for op in [Op::Write, Op::Sync] {
        for after in 0..8 {
            let disk = MemDisk::new();
            let options = small(SyncMode::Always, 0);
            let db = open(&disk, &options).unwrap();
            wait_for("the next segment", || disk.sites().get("sync wal") >= Some(&3));
            let (mut history, mut random) = (History::default(), Random::new(after));
            disk.fail(Fault::once(op, EIO).suffix(".wal").after(after));
            let mut acknowledged = 0;
            let failed = loop {
                match db.write_batch(batch(history.next(&mut random))) {
                    Ok(()) => acknowledged += 1,
                    Err(error) => break error,
                }
                assert!(acknowledged <= after, "acknowledged after a failed {op:?}");
            };
            assert!(matches!(failed, Error::Failed { .. }), "{failed:?}");
            assert_eq!(acknowledged, after);
            let syncs = disk.sites()["sync wal"];
            for _ in 0..3 {
                let refused = db.put(lsm::Space::Data, b"k", super::model::version(1), b"v");
                assert!(matches!(refused, Err(Error::Failed { .. })), "{refused:?}");
            }
            assert!(db.flush().is_ok() || db.stats().failed.is_some());
            assert_eq!(history.count_batches(&db) as u64, acknowledged, "reads go on");
            let cut = disk.crash(after);
            assert!(db.close().is_err(), "a failed store does not claim to have closed well");
            assert_eq!(count_wal_syncs(&disk), syncs, "a failed sync is not tried again");
            let db = open(&cut, &options).unwrap();
            let found = history.count_batches(&db) as u64;
            assert!(found == acknowledged || found == acknowledged + 1, "{found} batches");
        }
    }
}

fn count_wal_syncs(disk: &MemDisk) -> u64 {
    disk.sites().get("sync wal").copied().unwrap_or(0)
}

/// Row 12 of `docs/results/reliability.md`: a lack of file descriptors is transient and needs no
/// restart.
#[test]
fn a_lack_of_descriptors_does_not_fail_the_store() {
    let disk = MemDisk::new();
    let options = small(SyncMode::Always, 1);
    let db = open(&disk, &options).unwrap();
    let (mut model, mut history, mut random) =
        (Model::default(), History::default(), Random::new(5));
    for turn in 0..4 {
        for op in [Op::Create, Op::Open] {
            disk.fail(Fault::forever(op, EMFILE));
        }
        // Writes succeed while the existing segments have room, and are then refused temporarily.
        let (mut refused, mut taken) = (0, 0);
        for _ in 0..400 {
            let writes = history.next(&mut random).to_vec();
            if refused > 5 {
                break;
            }
            match db.commit(batch(&writes)) {
                Ok(()) => {
                    model.apply(&writes);
                    taken += 1;
                }
                Err(error) => {
                    assert!(!matches!(error, Error::Failed { .. }), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "turn {turn}: the log needed no new segment");
        assert!(db.flush().is_err() || taken == 0);
        model.check_gets(&db);
        disk.clear_faults();
        let writes = history.next(&mut random).to_vec();
        db.write_batch(batch(&writes)).unwrap();
        model.apply(&writes);
        db.compact().unwrap();
        model.check(&db);
    }
    db.close().unwrap();
    model.check(&open(&disk, &options).unwrap());
}

/// A failed read is an error, never "absent", and reads succeed once the disk works again.
#[test]
fn a_failed_read_is_an_error_and_never_absence() {
    let disk = MemDisk::new();
    let options = Options { cache_bytes: 0, ..small(SyncMode::Always, 1) };
    let db = open(&disk, &options).unwrap();
    let (mut model, mut history, mut random) =
        (Model::default(), History::default(), Random::new(6));
    for _ in 0..100 {
        let writes = history.next(&mut random).to_vec();
        db.write_batch(batch(&writes)).unwrap();
        model.apply(&writes);
    }
    db.flush().unwrap();
    wait_for("idle", || db.is_idle());
    disk.fail(Fault::forever(Op::Read, EIO).suffix(".sst"));
    for (space, key) in model.0.keys() {
        assert!(matches!(db.get(*space, key), Err(Error::Io { .. })));
    }
    assert!(Model::of(&db).is_err());
    disk.clear_faults();
    model.check(&db);
}
