//! Every kind of error on every call of background work: flush, compaction, creation of log
//! segments, manifest, removals, check of the directory.
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
fn passes(op: Op, errno: i32) -> bool {
    let sure = !matches!(op, Op::Sync | Op::SyncDir | Op::Read);
    sure && matches!(errno, 23 | EMFILE | EFBIG | ENOSPC | 122)
}

/// A fault that makes the store issue calls that it issues only after a failure: the manifest is
/// rewritten after an append that found no space.
fn lead_in(op: Op, file: &str) -> Option<Fault> {
    let anew = file == ".tmp" || matches!(op, Op::Rename | Op::List);
    anew.then(|| Fault::once(Op::Write, ENOSPC).suffix("MANIFEST"))
}

struct Life {
    db: Db,
    history: History,
    random: Random,
    model: Model,
    /// All attempted writes, including those with unknown outcome.
    attempted: Model,
    acknowledged: u64,
}

impl Life {
    fn write(&mut self) -> Result<(), Error> {
        let writes = self.history.next(&mut self.random).to_vec();
        self.attempted.apply(&writes);
        self.db.commit(batch(&writes))?;
        self.model.apply(&writes);
        self.acknowledged += 1;
        Ok(())
    }

    /// Triggers all background work: new segments, flushes, compactions.
    fn turn(&mut self) {
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

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
    }
}

fn strike(op: Op, file: &str, errno: i32, name: &str) {
    let what = format!("{op:?} {file} {name}");
    let disk = MemDisk::new();
    let options = small(SyncMode::Always, 0);
    let db = open(&disk, &options).unwrap();
    let mut life = Life {
        db,
        history: History::default(),
        random: Random::new(u64::from(errno.unsigned_abs())),
        model: Model::default(),
        attempted: Model::default(),
        acknowledged: 0,
    };
    life.turn();
    if let Some(first) = lead_in(op, file) {
        disk.fail(first);
    }
    // Once the first fault has struck, only the second, permanent fault is pending.
    disk.fail(Fault::once(op, errno).suffix(file));
    disk.fail(Fault::forever(op, errno).suffix(file));
    let met = || disk.pending_faults() == 1;
    let told = |life: &Life| passes(op, errno) || life.db.stats().failed.is_some();
    until(&what, || {
        life.turn();
        met() && told(&life)
    });
    if passes(op, errno) {
        assert_eq!(life.db.stats().failed, None, "{what}");
        life.model.check_gets(&life.db);
        disk.clear_faults();
        until(&what, || life.write().is_ok());
        life.db.compact().unwrap();
        life.model.check(&life.db);
    } else {
        let acknowledged = life.acknowledged;
        let cause = life.db.stats().failed.unwrap();
        let says = std::io::Error::from_raw_os_error(errno).to_string();
        assert!(cause.contains(&says), "{what}: {cause}");
        disk.clear_faults();
        for _ in 0..3 {
            life.turn();
            let put = life.db.write_batch(batch(&[Write::put(b"k", 1 << 30, vec![])]));
            assert!(matches!(put, Err(Error::Failed { .. })), "{what}: {put:?}");
        }
        assert_eq!(life.acknowledged, acknowledged, "{what}");
        life.model.check_gets(&life.db);
    }
    for restarted in [disk.process_crash(), disk.crash(3)] {
        let db = open(&restarted, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&db, &life.model, &life.attempted);
    }
}

#[test]
fn a_background_error_stops_writes_or_clears_by_itself() {
    for (op, file) in CALLS {
        thread::scope(|scope| {
            for (errno, name) in ERRORS {
                scope.spawn(move || strike(op, file, errno, name));
            }
        });
    }
}

/// An idle store notices that its directory lost its files.
#[test]
fn a_directory_without_its_files_is_noticed_by_an_idle_store() {
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
