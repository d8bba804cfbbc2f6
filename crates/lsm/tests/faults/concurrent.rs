//! Tests of readers, scans and snapshots concurrent with writes, flushes and compactions: a batch
//! is visible as a whole or not at all, and no reader sees an older state than before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lsm::{Batch, Db, MemDisk, Snapshot, Space, SyncMode};

use super::model::{effort, open, small, version};

/// Keys that are always written together, across all trees and two spaces.
const KEYS: u64 = 8;
const GROUPS: u64 = 12;

fn key(group: u64, i: u64) -> Vec<u8> {
    format!("group{group:02}-{i}").into_bytes()
}

fn space(i: u64) -> Space {
    if i.is_multiple_of(2) { Space::Data } else { Space::Hints }
}

fn write(db: &Db, group: u64, time: u64) {
    let mut batch = Batch::new();
    for i in 0..KEYS {
        batch.put(space(i), &key(group, i), version(time), &[time as u8; 200]).unwrap();
    }
    db.commit(batch).unwrap();
}

/// Reads the version of each group in a snapshot; all keys of a group must have the same version.
fn read_versions(snapshot: &Snapshot) -> Vec<u64> {
    let mut times = vec![Vec::new(); GROUPS as usize];
    for space in [Space::Data, Space::Hints] {
        let mut scan = snapshot.scan(space, b"", None);
        while let Some((key, record)) = scan.next().unwrap() {
            let group: usize = std::str::from_utf8(&key[5..7]).unwrap().parse().unwrap();
            times[group].push(record.version().time);
        }
    }
    times
        .iter()
        .map(|times| {
            let first = times.first().copied().unwrap_or(0);
            assert!(times.iter().all(|time| *time == first), "a batch in pieces: {times:?}");
            assert!(times.is_empty() || times.len() as u64 == KEYS, "a batch in pieces: {times:?}");
            first
        })
        .collect()
}

/// Takes snapshots until the writers are done. Each snapshot must show at least the versions of the
/// previous one, and all writes acknowledged before the snapshot was taken.
fn read_snapshots(db: &Db, acknowledged: &[AtomicU64], done: &AtomicBool) -> u64 {
    let (mut seen, mut last) = (0, vec![0; GROUPS as usize]);
    while !done.load(Ordering::Acquire) {
        let least: Vec<_> = acknowledged.iter().map(|a| a.load(Ordering::Acquire)).collect();
        let snapshot = db.snapshot();
        let now = read_versions(&snapshot);
        for group in 0..GROUPS as usize {
            assert!(now[group] >= last[group], "a snapshot went back in time");
            assert!(now[group] >= least[group], "a snapshot misses what was acknowledged");
        }
        assert_eq!(read_versions(&snapshot), now, "a snapshot moved");
        last = now;
        seen += 1;
    }
    seen
}

fn read_keys(db: &Db, acknowledged: &[AtomicU64], done: &AtomicBool) -> u64 {
    let mut seen = 0;
    while !done.load(Ordering::Acquire) {
        for group in 0..GROUPS {
            let least = acknowledged[group as usize].load(Ordering::Acquire);
            for i in 0..KEYS {
                let found = db.get(space(i), &key(group, i)).unwrap();
                let time = found.map_or(0, |record| record.view().version().time);
                assert!(time >= least, "group {group}: {time} is read, {least} was acknowledged");
                seen += 1;
            }
        }
    }
    seen
}

fn write_beside_readers(sync: SyncMode) {
    let disk = MemDisk::new();
    let options = small(sync, 2);
    let db = open(&disk, &options).unwrap();
    let acknowledged: Vec<_> = (0..GROUPS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let rounds = 600 * effort();
    std::thread::scope(|scope| {
        let (db, acknowledged, done) = (&db, &acknowledged, &done);
        let readers = [
            scope.spawn(|| read_snapshots(db, acknowledged, done)),
            scope.spawn(|| read_keys(db, acknowledged, done)),
        ];
        let maintenance = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                db.flush().unwrap();
                db.compact().unwrap();
            }
        });
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                scope.spawn(move || {
                    for time in 1..=rounds {
                        for group in (writer..GROUPS).step_by(3) {
                            write(db, group, time);
                            acknowledged[group as usize].store(time, Ordering::Release);
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Release);
        maintenance.join().unwrap();
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    let last = vec![rounds; GROUPS as usize];
    assert_eq!(read_versions(&db.snapshot()), last);
    let crashed = if sync == SyncMode::Always { disk.crash(1) } else { disk.process_crash() };
    drop(db);
    assert_eq!(read_versions(&open(&crashed, &options).unwrap().snapshot()), last);
}

#[test]
fn concurrent_readers_see_whole_batches() {
    write_beside_readers(SyncMode::Always);
    write_beside_readers(SyncMode::Interval(Duration::from_millis(1)));
}
