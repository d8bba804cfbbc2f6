//! Tests of the store with its threads.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::disk::MemDisk;
use crate::engine::Lookup;
use crate::purge::PurgeRule;
use crate::table::ReadMode;

fn options() -> Options {
    Options {
        new_store_id: 5,
        memtable_bytes: 128 << 10,
        cache_bytes: 256 << 10,
        segment_bytes: 128 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 128 << 10,
        ..Options::default()
    }
}

fn open(disk: &MemDisk, sync: SyncMode) -> Db {
    Db::open(Arc::new(disk.clone()), Options { sync, ..options() }).unwrap()
}

fn key(thread: u64, i: u64) -> Vec<u8> {
    format!("key-{thread}-{i:05}").into_bytes()
}

/// Many threads write, blocking and non-blocking, during flushes and compactions, in every sync
/// mode.
#[test]
fn all_writes_of_concurrent_threads_are_stored() {
    for sync in [SyncMode::Always, SyncMode::Interval(Duration::from_millis(1)), SyncMode::Never] {
        let disk = MemDisk::new();
        let db = open(&disk, sync);
        let (outcome_sender, outcomes) = mpsc::channel();
        thread::scope(|scope| {
            for writer in 0..4 {
                let (db, outcome_sender) = (&db, outcome_sender.clone());
                scope.spawn(move || {
                    for i in 0..1500 {
                        let version = Version { time: i + 1, origin: writer as u32 };
                        if i % 2 == 0 {
                            db.put(Space::Data, &key(writer, i), version, &[3; 100]).unwrap();
                        } else {
                            let mut batch = Batch::new();
                            batch.put(Space::Data, &key(writer, i), version, &[3; 100]).unwrap();
                            let outcome_sender = outcome_sender.clone();
                            db.submit(batch, move |outcome| outcome_sender.send(outcome).unwrap());
                        }
                    }
                });
            }
        });
        drop(outcome_sender);
        assert_eq!(outcomes.iter().map(Result::unwrap).count(), 3000);
        let assert_all_stored = |db: &Db| {
            for writer in 0..4 {
                for i in 0..1500 {
                    assert!(db.get(Space::Data, &key(writer, i)).unwrap().is_some());
                }
            }
        };
        assert_all_stored(&db);
        assert!(db.stats().flushes > 0);
        db.compact().unwrap();
        assert_all_stored(&db);
        let stats = db.stats();
        assert_eq!(stats.commit_times.iter().sum::<u64>(), stats.wal_writes, "each group is timed");
        assert!(stats.commit_nanos > 0 && stats.flush_nanos > 0);
        db.close().unwrap();
        assert_all_stored(&open(&disk, sync));
    }
}

#[test]
fn a_nonblocking_read_reports_that_it_would_block_on_a_cold_disk() {
    let disk = MemDisk::new();
    let db = open(&disk, SyncMode::Never);
    db.put(Space::Data, b"k", Version::default(), b"v").unwrap();
    assert!(matches!(
        db.engine().get(Space::Data, b"k", ReadMode::NonBlocking).unwrap(),
        Lookup::Found(_)
    ));
    db.flush().unwrap();
    disk.set_cold(true);
    assert!(matches!(
        db.engine().get(Space::Data, b"k", ReadMode::NonBlocking).unwrap(),
        Lookup::WouldBlock
    ));
    assert!(db.get(Space::Data, b"k").unwrap().is_some());
    assert!(
        matches!(
            db.engine().get(Space::Data, b"k", ReadMode::NonBlocking).unwrap(),
            Lookup::Found(_)
        ),
        "cached now"
    );
}

/// The sync of the batch also makes all earlier writes durable.
#[test]
fn a_durable_batch_survives_a_power_cut_in_every_sync_mode() {
    for sync in [SyncMode::Interval(Duration::from_secs(3600)), SyncMode::Never] {
        let disk = MemDisk::new();
        let db = open(&disk, sync);
        let version = |time| Version { time, origin: 0 };
        db.put(Space::Data, b"before", version(1), b"v").unwrap();
        let mut batch = Batch::new();
        batch.put(Space::Data, b"durable", version(2), b"v").unwrap();
        batch.make_durable();
        db.commit(batch).unwrap();
        db.put(Space::Data, b"after", version(3), b"v").unwrap();
        let disk = disk.crash(1);
        let db = open(&disk, sync);
        let holds = |key: &[u8]| db.get(Space::Data, key).unwrap().is_some();
        assert!(holds(b"before") && holds(b"durable"), "{sync:?}");
    }
}

/// A read returns the newest record, but first reads an older record that has the late flag. Both
/// records count toward the limit.
#[test]
fn a_limited_read_stays_within_its_memory_limit() {
    const LEN: usize = 100_000;
    let db = open(&MemDisk::new(), SyncMode::Never);
    let version = |time| Version { time, origin: 0 };
    db.put(Space::Data, b"k", version(9), &[9; LEN]).unwrap();
    let too_long = |room| match db.engine().get(Space::Data, b"k", ReadMode::Limited(room)).unwrap()
    {
        Lookup::TooLong(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let bytes = too_long(LEN);
    assert!((LEN..LEN + 100).contains(&bytes), "{bytes}");
    db.flush().unwrap();
    db.put(Space::Data, b"k", version(5), &[5; LEN]).unwrap();
    assert!(too_long(LEN + 100) > LEN + 100, "the older one, then the newer one");
    let found = db.engine().get(Space::Data, b"k", ReadMode::Limited(3 * LEN)).unwrap();
    assert!(matches!(found, Lookup::Found(record) if record.view().version() == version(9)));
}

/// Obsolete tables are deleted, whether a compaction or a reader released them last, and however
/// soon the store closes.
#[test]
fn closing_deletes_obsolete_tables() {
    for life in 0..40 {
        let disk = MemDisk::new();
        let db = Db::open(Arc::new(disk.clone()), options()).unwrap();
        for i in 0..4 {
            let version = Version { time: i + 1, origin: 1 };
            db.put(Space::Data, &key(0, i), version, &[3; 100]).unwrap();
            db.flush().unwrap();
        }
        let reader = (life % 2 == 0).then(|| db.snapshot());
        db.compact().unwrap();
        drop(reader);
        db.close().unwrap();
        let mut names = disk.list().unwrap();
        names.retain(|name| name.ends_with(".sst"));
        assert_eq!(names.len(), 1, "life {life}: {names:?}");
    }
}

/// Waits for the end of a requested compaction.
fn wait_for_compaction(db: &Db, number: u64) -> Compaction {
    loop {
        let (current, last) = db.compactions();
        if let Some(last) = last.filter(|last| last.number >= number) {
            return last;
        }
        assert!(current.is_some_and(|current| current.number <= number));
        thread::yield_now();
    }
}

#[test]
fn a_requested_compaction_runs_beside_writes_and_completes() {
    let disk = MemDisk::new();
    let db = open(&disk, SyncMode::Never);
    assert_eq!(db.compactions(), (None, None));
    let put = |time: u64, len: usize| {
        let version = Version { time, origin: 1 };
        db.put(Space::Data, &key(0, time % 2000), version, &vec![time as u8; len]).unwrap();
    };
    (1..8000).for_each(|time| put(time, 200));
    let number = db.request_compaction();
    let mut time = 8000;
    let joined = db.request_compaction();
    assert!((number..=number + 1).contains(&joined));
    while db.compactions().0.is_some() {
        put(time, 200);
        time += 1;
    }
    let last = wait_for_compaction(&db, joined);
    assert_eq!((last.number, &last.failed), (joined, &None), "{last:?}");
    assert!(last.records > 0 && last.records == last.of_records && last.took.is_some(), "{last:?}");
    db.flush().unwrap();
    let third = db.request_compaction();
    let last = wait_for_compaction(&db, third);
    assert_eq!(db.stats().levels[0].tables, 0);
    assert!(last.bytes <= last.bytes_before, "{last:?}");
    for at in 0..2000 {
        assert!(db.get(Space::Data, &key(0, at)).unwrap().is_some());
    }
}

/// When the dropping of orphaned records starts, a compaction in progress may already have passed
/// some of them. A compaction that starts later drops them.
#[test]
fn a_compaction_requested_anew_starts_later_and_leaves_no_orphans() {
    let (disk, purge) = (MemDisk::new(), Arc::new(PurgeRule::never()));
    let wanted = Options { sync: SyncMode::Never, purge: Arc::clone(&purge), ..options() };
    let db = Db::open(Arc::new(disk), wanted).unwrap();
    for i in 0..4000 {
        let version = Version { time: i + 1, origin: 1 };
        db.put(Space::Data, &key(i % 2, i), version, &[1; 200]).unwrap();
    }
    let first = db.request_compaction();
    db.put(Space::Data, &key(1, 9999), Version { time: 9999, origin: 1 }, b"in memory").unwrap();
    purge.drop_orphans(|key, _| key.starts_with(b"key-0"));
    let anew = db.request_compaction_anew();
    assert_eq!(anew, first + 1);
    assert_eq!(wait_for_compaction(&db, first).failed, None);
    assert_eq!(wait_for_compaction(&db, anew).failed, None);
    let (mut scan, mut left) = (db.scan(Space::Data, b"", None), 0);
    while let Some((key, _)) = scan.next().unwrap() {
        assert!(key.starts_with(b"key-0"));
        left += 1;
    }
    assert_eq!(left, 2000);
}

#[test]
fn a_failed_compaction_reports_its_error() {
    let disk = MemDisk::new();
    // With a lower trigger, a background compaction could leave a single table. A requested
    // compaction does not rewrite a single table, so it would not fail.
    let wanted = Options { sync: SyncMode::Never, level0_tables: 1000, ..options() };
    let db = Db::open(Arc::new(disk.clone()), wanted).unwrap();
    let fill = |from: u64| {
        for time in from..from + 1000 {
            let version = Version { time, origin: 1 };
            db.put(Space::Data, &key(0, time % 1000), version, &[3; 100]).unwrap();
        }
        db.flush().unwrap();
    };
    fill(1);
    fill(5000);
    disk.set_capacity(Some(0));
    let number = db.request_compaction();
    let last = wait_for_compaction(&db, number);
    assert!(last.failed.as_ref().is_some_and(|why| why.contains("space")), "{last:?}");
    disk.set_capacity(None);
    let number = db.request_compaction();
    assert_eq!(wait_for_compaction(&db, number).failed, None);
}

#[test]
fn a_closing_store_refuses_writes_and_keeps_accepted_ones() {
    let disk = MemDisk::new();
    let db = open(&disk, SyncMode::Always);
    db.put(Space::Data, b"k", Version::default(), b"v").unwrap();
    db.shared.queue.close();
    let refused = db.put(Space::Data, b"l", Version::default(), b"v");
    assert!(matches!(refused, Err(Error::Closing)));
    drop(db);
    let db = open(&disk, SyncMode::Always);
    assert!(db.get(Space::Data, b"k").unwrap().is_some());
    assert!(db.get(Space::Data, b"l").unwrap().is_none());
}
