//! Tests of repeated stops and kills: files of earlier runs do not accumulate, and no acknowledged
//! write is lost.

use lsm::disk::{Fault, Op};
use lsm::{Disk, MemDisk, Options, SyncMode};

use super::model::{History, Model, Random, Write, batch, effort, open, small};

const MODES: [SyncMode; 2] = [SyncMode::Always, SyncMode::Never];

fn segments(disk: &MemDisk) -> Vec<u64> {
    let names = disk.list().unwrap();
    let segments = names.iter().filter(|name| name.ends_with(".wal"));
    // A background thread may remove a segment in the meantime.
    segments.filter_map(|name| Some(disk.file(name)?.len() as u64)).collect()
}

/// Writes batches, occasionally enough for a memtable, and adds them to the model.
fn write(db: &lsm::Db, model: &mut Model, history: &mut History, random: &mut Random) {
    for _ in 0..random.below(120) {
        let writes = history.next(random).to_vec();
        db.write_batch(batch(&writes)).unwrap();
        model.apply(&writes);
    }
}

#[test]
fn a_clean_stop_leaves_nothing_to_replay() {
    for sync in MODES {
        let (disk, options) = (MemDisk::new(), small(sync, 1));
        let (mut model, mut history) = (Model::default(), History::default());
        let mut random = Random::new(1);
        let memtables = |db: &lsm::Db| (db.stats().memtable_bytes, db.stats().immutable_bytes);
        let empty = memtables(&open(&MemDisk::new(), &options).unwrap());
        for life in 0..16 {
            let db = open(&disk, &options).unwrap();
            assert_eq!(memtables(&db), empty, "life {life}");
            model.check(&db);
            write(&db, &mut model, &mut history, &mut random);
            db.close().unwrap();
            let left = segments(&disk);
            assert!(left.len() == 1 && left[0] <= 256, "life {life} leaves {left:?}");
        }
        // A power cut after the stop loses nothing, in any mode.
        model.check(&open(&disk.crash(5), &options).unwrap());
    }
}

/// The process is killed at once, after some writes, or during the flush that follows a recovery.
#[test]
fn repeated_kills_do_not_lengthen_the_log() {
    for (sync, seed) in
        MODES.into_iter().flat_map(|sync| (1..=4 * effort()).map(move |s| (sync, s)))
    {
        let (mut disk, options) = (MemDisk::new(), small(sync, 1));
        let (mut model, mut history) = (Model::default(), History::default());
        let mut random = Random::new(seed);
        let mut most = 0;
        for life in 0..24 {
            // About half of the runs lack the space to flush their recovered log in the background;
            // the next run opens the log that the previous run left.
            let fault = Fault::forever(Op::Create, 28).suffix(".sst");
            let db = open(&disk, &options).unwrap();
            if random.below(2) == 0 {
                disk.fail(fault);
            }
            model.check_gets(&db);
            most = most.max(segments(&disk).len());
            if random.below(3) > 0 {
                for _ in 0..random.below(40) {
                    let writes = history.next(&mut random).to_vec();
                    db.commit(batch(&writes)).unwrap();
                    model.apply(&writes);
                }
            }
            disk.clear_faults();
            let killed = disk.process_crash();
            drop(db);
            disk = killed;
            assert!(most <= 5, "life {life}: {most} segments");
        }
        model.check(&open(&disk, &options).unwrap());
    }
}

#[test]
fn a_stop_on_a_full_disk_keeps_everything_and_is_clean() {
    for sync in MODES {
        let (disk, options) = (MemDisk::new(), small(sync, 1));
        let (mut model, mut history) = (Model::default(), History::default());
        let mut random = Random::new(3);
        let db = open(&disk, &options).unwrap();
        write(&db, &mut model, &mut history, &mut random);
        db.put(lsm::Space::Data, b"k", super::model::version(1 << 30), b"v").unwrap();
        model.apply(&[Write::put(b"k", 1 << 30, b"v".to_vec())]);
        disk.set_capacity(Some(disk.used_bytes()));
        db.close().unwrap();
        disk.set_capacity(None);
        for next in [disk.deep_clone(), disk.crash(1)] {
            let db = open(&next, &options).unwrap();
            model.check(&db);
            db.close().unwrap();
            assert_eq!(segments(&next).len(), 1);
        }
    }
}

/// Copies a store file by file while it is written, as `cp -r` of a running directory does.
fn copy_while_written(
    disk: &MemDisk,
    random: &mut Random,
    mut between: impl FnMut(&mut Random),
) -> MemDisk {
    let copy = MemDisk::new();
    // The second pass copies files created in the meantime, as a slow copy might.
    for _ in 0..2 {
        let mut names = disk.list().unwrap();
        names.retain(|name| copy.file(name).is_none());
        while !names.is_empty() {
            let name = names.swap_remove(random.below(names.len() as u64) as usize);
            if let Some(bytes) = disk.file(&name) {
                copy.put_file(&name, bytes);
            }
            between(random);
        }
    }
    copy
}

#[test]
fn a_copy_of_a_running_store_is_refused_or_is_a_past_state() {
    let (mut refused, mut opened) = (0, 0);
    for (sync, seed) in
        MODES.into_iter().flat_map(|sync| (0..20 * effort()).map(move |s| (sync, s)))
    {
        let (disk, options): (_, Options) = (MemDisk::new(), small(sync, 1));
        let db = open(&disk, &options).unwrap();
        let (mut history, mut random) = (History::default(), Random::new(seed));
        for _ in 0..150 {
            db.write_batch(batch(history.next(&mut random))).unwrap();
        }
        let copy = copy_while_written(&disk, &mut random, |random| {
            for _ in 0..random.below(30) {
                db.write_batch(batch(history.next(random))).unwrap();
            }
            match random.below(12) {
                0 => db.flush().unwrap(),
                1 => db.compact().unwrap(),
                _ => {}
            }
        });
        match open(&copy, &options) {
            Ok(copied) => {
                // Panics unless the copy has the state after some number of batches.
                history.count_batches(&copied);
                opened += 1;
            }
            Err(error) => {
                assert!(error.to_string().len() > 20, "{error}");
                refused += 1;
            }
        }
    }
    println!("copies of running stores: {opened} opened, {refused} refused");
    assert!(opened > 0, "none of {refused} copies could be opened");
}
