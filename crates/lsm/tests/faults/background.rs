//! Tests of every kind of error at every call of background work: flush, compaction, creation of
//! log segments, manifest, removals, check of the directory.
//!
//! A full disk and a lack of descriptors are transient: writes may be refused in the meantime, and
//! are accepted again without a restart. After any other error the store has failed: it reports the
//! failure, rejects writes, and serves reads. `EINTR` counts like any other error here, because the
//! real disk retries interrupted calls.

use std::thread;
use std::time::{Duration, Instant};

use lsm::disk::{Fault, Op};
use lsm::{Db, Error, MemDisk, SyncMode};

use super::errors::check;
use super::model::{History, Model, Random, Write, batch, open, small, wait_for};

const EMFILE: i32 = 24;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;

/// Number and name of the operating system's errors.
const ERRORS: [(i32, &str); 18] = [
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (16, "EBUSY"),
    (19, "ENODEV"),
    (23, "ENFILE"),
    (EMFILE, "EMFILE"),
    (EFBIG, "EFBIG"),
    (ENOSPC, "ENOSPC"),
    (30, "EROFS"),
    (95, "EOPNOTSUPP"),
    (116, "ESTALE"),
    (122, "EDQUOT"),
];

/// The calls of background work: kind, and suffix of the file's name.
const CALLS: [(Op, &str); 18] = [
    (Op::Create, ".wal"),
    (Op::Allocate, ".wal"),
    (Op::Sync, ".wal"),
    (Op::Remove, ".wal"),
    (Op::Create, ".sst"),
    (Op::Write, ".sst"),
    (Op::Sync, ".sst"),
    (Op::Open, ".sst"),
    (Op::Read, ".sst"),
    (Op::Remove, ".sst"),
    (Op::Write, "MANIFEST"),
    (Op::Sync, "MANIFEST"),
    (Op::Rename, "MANIFEST"),
    (Op::Create, ".tmp"),
    (Op::Sync, ".tmp"),
    (Op::List, ""),
    (Op::SyncDir, ""),
    (Op::Find, "STORE"),
];

/// Returns true if the store survives this error of this call: a lack of descriptors or space, or
/// the process's file size limit. After a failed sync or read the state of the disk is unknown.
fn is_survivable(op: Op, errno: i32) -> bool {
    let sure = !matches!(op, Op::Sync | Op::SyncDir | Op::Read);
    sure && matches!(errno, 23 | EMFILE | EFBIG | ENOSPC | 122)
}

/// The fault that must precede a fault of this call: the store rewrites the manifest, with calls of
/// its own, only after an append failed for lack of space. `None` = the call needs no such fault.
fn preceding_fault(op: Op, file: &str) -> Option<Fault> {
    let anew = file == ".tmp" || matches!(op, Op::Rename | Op::List);
    anew.then(|| Fault::once(Op::Write, ENOSPC).suffix("MANIFEST"))
}

struct StoreRun {
    db: Db,
    history: History,
    random: Random,
    model: Model,
    /// All attempted writes, including those with unknown outcome.
    attempted: Model,
    acknowledged: u64,
}

impl StoreRun {
    fn write(&mut self) -> Result<(), Error> {
        let writes = self.history.next(&mut self.random).to_vec();
        self.attempted.apply(&writes);
        self.db.commit(batch(&writes))?;
        self.model.apply(&writes);
        self.acknowledged += 1;
        Ok(())
    }

    /// Triggers all background work: new segments, flushes, compactions.
    fn trigger_background_work(&mut self) {
        for _ in 0..30 {
            if self.write().is_err() {
                break;
            }
        }
        // The results do not matter, only the status of the store afterwards.
        let _ = self.db.flush();
        let _ = self.db.compact();
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
    }
}

fn check_fault(op: Op, file: &str, errno: i32, name: &str) {
    let what = format!("{op:?} {file} {name}");
    let disk = MemDisk::new();
    let options = small(SyncMode::Always, 0);
    let db = open(&disk, &options).unwrap();
    let mut run = StoreRun {
        db,
        history: History::default(),
        random: Random::new(u64::from(errno.unsigned_abs())),
        model: Model::default(),
        attempted: Model::default(),
        acknowledged: 0,
    };
    run.trigger_background_work();
    if let Some(first) = preceding_fault(op, file) {
        disk.fail(first);
    }
    // After the first fault, only the second, permanent fault is pending.
    disk.fail(Fault::once(op, errno).suffix(file));
    disk.fail(Fault::forever(op, errno).suffix(file));
    let is_first_fault_used = || disk.pending_faults() == 1;
    let is_failure_reported =
        |run: &StoreRun| is_survivable(op, errno) || run.db.stats().failed.is_some();
    wait_until(&what, || {
        run.trigger_background_work();
        is_first_fault_used() && is_failure_reported(&run)
    });
    if is_survivable(op, errno) {
        assert_eq!(run.db.stats().failed, None, "{what}");
        run.model.check_gets(&run.db);
        disk.clear_faults();
        wait_until(&what, || run.write().is_ok());
        run.db.compact().unwrap();
        run.model.check(&run.db);
    } else {
        let acknowledged = run.acknowledged;
        let cause = run.db.stats().failed.unwrap();
        let says = std::io::Error::from_raw_os_error(errno).to_string();
        assert!(cause.contains(&says), "{what}: {cause}");
        disk.clear_faults();
        for _ in 0..3 {
            run.trigger_background_work();
            let put = run.db.write_batch(batch(&[Write::put(b"k", 1 << 30, vec![])]));
            assert!(matches!(put, Err(Error::Failed { .. })), "{what}: {put:?}");
        }
        assert_eq!(run.acknowledged, acknowledged, "{what}");
        run.model.check_gets(&run.db);
    }
    for restarted in [disk.process_crash(), disk.crash(3)] {
        let db = open(&restarted, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&db, &run.model, &run.attempted);
    }
}

#[test]
fn a_background_error_fails_the_store_or_is_retried() {
    for (op, file) in CALLS {
        thread::scope(|scope| {
            for (errno, name) in ERRORS {
                scope.spawn(move || check_fault(op, file, errno, name));
            }
        });
    }
}

/// The log thread checks the directory of an idle store.
#[test]
fn an_idle_store_fails_if_its_directory_loses_its_files() {
    for name in ["STORE", "MANIFEST"] {
        let disk = MemDisk::new();
        let db = open(&disk, &small(SyncMode::Always, 0)).unwrap();
        db.commit(batch(&[Write::put(b"k", 1, vec![7])])).unwrap();
        assert!(disk.delete(name));
        wait_for("the store to notice", || db.stats().failed.is_some());
        let put = db.commit(batch(&[Write::put(b"k", 2, vec![])]));
        assert!(matches!(put, Err(Error::Failed { .. })), "{put:?}");
        assert!(db.get(lsm::Space::Data, b"k").unwrap().is_some());
    }
}
