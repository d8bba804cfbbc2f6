//! Rows 6 and 7 of `docs/results/reliability.md`: one flipped bit anywhere in a store. Every answer
//! is correct or an error; no answer is silently wrong.

use std::collections::BTreeMap;

use lsm::disk::{Fault, Op};
use lsm::{Batch, Disk, Error, MemDisk, Options, Record, Space, SyncMode};

use super::model::{History, Model, Random, Write, batch, effort, open, small, wait_for};

/// A store with tables in several levels, records in the log, and a clean stop: at the last close
/// the disk had no space for another table.
fn store(options: &Options) -> (MemDisk, Model) {
    let disk = MemDisk::new();
    let mut model = Model::default();
    let (mut history, mut random) = (History::default(), Random::new(4));
    for life in 0..2 {
        let db = open(&disk, options).unwrap();
        for round in 0..140 {
            let writes = history.next(&mut random).to_vec();
            db.write_batch(batch(&writes)).unwrap();
            model.apply(&writes);
            match (life, round) {
                (0, 100) => db.compact().unwrap(),
                (0, 120) | (1, 60 | 90) => db.flush().unwrap(),
                _ => {}
            }
        }
        wait_for("idle", || db.is_idle());
        if life == 1 {
            disk.fail(Fault::forever(Op::Create, ENOSPC).suffix(".sst"));
        }
        db.close().unwrap();
    }
    disk.clear_faults();
    assert!(
        disk.list()
            .unwrap()
            .iter()
            .any(|name| { name.ends_with(".wal") && written_len(&disk, name) > 10_000 })
    );
    (disk, model)
}

const ENOSPC: i32 = 28;

/// The effect of damage on a store.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Verdict {
    RefusedAtOpen,
    ErrorOnUse,
    RightAnswer,
}

/// Determines the effect of the damage; panics on a wrong answer.
fn verdict(disk: &MemDisk, options: &Options, model: &Model, what: &str) -> Verdict {
    let db = match open(disk, options) {
        Ok(db) => db,
        Err(error) => {
            assert!(error.to_string().len() > 20, "{what}: {error}");
            return Verdict::RefusedAtOpen;
        }
    };
    let mut verdict = Verdict::RightAnswer;
    let mut check_reads = || {
        for ((space, key), expected) in &model.0 {
            match db.get(*space, key) {
                Ok(Some(found)) => {
                    assert!(found.view().order(&expected.view()).is_eq(), "{what}: {key:?} is old");
                    assert_eq!(found.value(), expected.value(), "{what}: {key:?}");
                }
                Ok(None) => panic!("{what}: {key:?} is gone without a word"),
                Err(_) => verdict = Verdict::ErrorOnUse,
            }
        }
        match Model::of(&db) {
            Ok(found) => assert!(model.same(&found), "{what}: {}", model.difference(&found)),
            Err(_) => verdict = Verdict::ErrorOnUse,
        }
    };
    check_reads();
    if db.compact().is_err() {
        check_reads();
        return Verdict::ErrorOnUse;
    }
    check_reads();
    drop(db);
    // The compaction has rewritten the tables; a restart must give no wrong answer either.
    match open(disk, options) {
        Ok(db) => match Model::of(&db) {
            Ok(found) => assert!(model.same(&found), "{what}: {}", model.difference(&found)),
            Err(_) => verdict = Verdict::ErrorOnUse,
        },
        Err(_) => verdict = Verdict::ErrorOnUse,
    }
    verdict
}

/// Length of the written part of a file, without the trailing zeros of log segments.
fn written_len(disk: &MemDisk, name: &str) -> u64 {
    let bytes = disk.file(name).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last as u64 + 1)
}

#[test]
fn a_flipped_bit_never_causes_a_wrong_answer() {
    let options = small(SyncMode::Always, 1);
    let (disk, model) = store(&options);
    let mut random = Random::new(11);
    let mut counts = BTreeMap::<(String, Verdict), u64>::new();
    let mut flips = 0;
    for name in disk.list().unwrap() {
        let bits = written_len(&disk, &name) * 8;
        for _ in 0..40 * effort() {
            let bit = random.below(bits);
            let damaged = disk.deep_clone();
            assert!(damaged.flip_bit(&name, bit));
            let verdict = verdict(&damaged, &options, &model, &format!("{name} bit {bit}"));
            let kind = name.rsplit('.').next().unwrap_or(&name).to_owned();
            *counts.entry((kind, verdict)).or_default() += 1;
            flips += 1;
        }
    }
    println!("rows 6, 7: {flips} flips, 0 silent: {counts:#?}");
}

/// The checksum of a record is computed where it enters the cluster: a record that arrives damaged
/// is stored unchanged, and every read detects the damage.
#[test]
fn a_record_that_arrived_damaged_is_never_returned() {
    let disk = MemDisk::new();
    let db = open(&disk, &small(SyncMode::Always, 0)).unwrap();
    let write = Write::put(b"k", 1, vec![7; 50]);
    let mut raw = Record::new(&write.key, &write.fields(), &write.value).view().raw().to_vec();
    raw[20] ^= 1;
    let mut batch = Batch::new();
    batch.record(Space::Data, b"k", &Record::parse(raw.into()).unwrap()).unwrap();
    db.write_batch(batch).unwrap();
    for step in 0..3 {
        assert!(matches!(db.get(Space::Data, b"k"), Err(Error::Corrupt { .. })), "step {step}");
        assert!(matches!(Model::of(&db), Err(Error::Corrupt { .. })), "step {step}");
        db.flush().unwrap();
    }
}

/// Blocks of zeros, and blocks with the bytes of other blocks: a disk that loses or misplaces a
/// write leaves such blocks.
#[test]
fn a_lost_or_misplaced_sector_never_causes_a_wrong_answer() {
    let options = small(SyncMode::Always, 0);
    let (disk, model) = store(&options);
    let mut random = Random::new(12);
    for name in disk.list().unwrap() {
        let sectors = written_len(&disk, &name) / 512;
        for turn in 0..12 * effort() {
            if sectors < 2 {
                continue;
            }
            let (to, from) = (random.below(sectors) as usize, random.below(sectors) as usize);
            let damaged = disk.deep_clone();
            let mut bytes = disk.file(&name).unwrap();
            if turn % 2 == 0 {
                bytes[to * 512..][..512].fill(0);
            } else {
                bytes.copy_within(from * 512..from * 512 + 512, to * 512);
            }
            damaged.put_file(&name, bytes);
            verdict(&damaged, &options, &model, &format!("{name} sector {to}"));
        }
    }
}
