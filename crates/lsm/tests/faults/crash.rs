//! Rows 1–3 of `docs/results/reliability.md`: a crash at every disk operation, in each sync mode.
//! The oracle is the same for all modes: the recovered state is the state after some prefix of the
//! batches, without holes. The modes differ in the minimum length of the prefix.

use std::collections::BTreeSet;
use std::time::Duration;

use lsm::disk::{Fault, Op};
use lsm::{Db, MemDisk, Options, Space, SyncMode};

use super::model::{History, Model, Random, Write, batch, effort, open, small, wait_for};

/// The state of a run when the power was cut.
struct Run {
    history: History,
    acknowledged: usize,
    /// Number of batches that precede a flush, which syncs.
    synced: usize,
}

/// Writes batches with flushes and compactions in between, until something fails.
fn run(disk: &MemDisk, options: &Options, seed: u64) -> Run {
    let mut run = Run { history: History::default(), acknowledged: 0, synced: 0 };
    let Ok(db) = open(disk, options) else { return run };
    let mut random = Random::new(seed);
    for round in 1..=110 {
        let writes = batch(run.history.next(&mut random));
        if db.write_batch(writes).is_err() {
            break;
        }
        run.acknowledged += 1;
        if round % 23 == 0 {
            let done = if round % 46 == 0 { db.compact() } else { db.flush() };
            if done.is_err() {
                break;
            }
            run.synced = run.acknowledged;
        }
    }
    if db.close().is_ok() {
        run.synced = run.acknowledged;
    }
    run
}

/// Checks the recovered store, continues to write, and checks the store again after further
/// crashes. `least`: the number of batches that must be recovered.
fn check(crashed: &MemDisk, options: &Options, run: &Run, least: usize, seed: u64) {
    let db = reopen(crashed, options);
    let moment = run.history.count_batches(&db);
    assert!(moment >= least, "{moment} batches are there, {least} must be");
    // Writes from before the crash and writes acknowledged after the recovery survive further
    // crashes.
    let mut after = History { batches: run.history.batches[..moment].to_vec() };
    let mut random = Random::new(seed);
    for _ in 0..3 {
        db.write_batch(batch(after.next(&mut random))).unwrap();
    }
    db.flush().unwrap();
    let last = [Write::put(b"last", 1 << 40, vec![9; 9])];
    db.write_batch(batch(&last)).unwrap();
    let again = crashed.process_crash();
    drop(db);
    let db = reopen(&again, options);
    assert!(db.get(Space::Data, b"last").unwrap().is_some());
    drop(db);
    let power_cut = again.crash(seed);
    let db = reopen(&power_cut, options);
    let found = Model::of(&db).unwrap();
    let own = found.0.keys().filter(|(_, key)| key.starts_with(b"only")).count();
    assert_eq!(own, moment + 3, "what was flushed after the recovery is lost");
}

fn reopen(disk: &MemDisk, options: &Options) -> Db {
    open(disk, options).unwrap_or_else(|error| panic!("recovery failed: {error}"))
}

fn crash_at_every_operation(sync: SyncMode, tree_bits: u8) {
    let options = small(sync, tree_bits);
    let whole = MemDisk::new();
    let complete = run(&whole, &options, 1);
    assert_eq!(complete.acknowledged, 110);
    let all: BTreeSet<_> = whole.sites().into_keys().collect();
    let (mut hit, mut crashes) = (BTreeSet::new(), 0);
    for seed in 1..=effort() {
        let mut at = 0;
        loop {
            let disk = MemDisk::new();
            disk.crash_after(at);
            let run = run(&disk, &options, seed);
            let Some(site) = disk.cut_site() else { break };
            hit.insert(site);
            let acknowledged = run.acknowledged;
            let power_cut = if sync == SyncMode::Always { acknowledged } else { run.synced };
            check(&disk.process_crash(), &options, &run, acknowledged, at);
            check(&disk.crash(at + seed), &options, &run, power_cut, at);
            crashes += 2;
            at += 1;
        }
    }
    println!(
        "row 3 {sync:?}, {} trees: {crashes} crashes, sites hit {} of {}, not hit: {:?}",
        1 << tree_bits,
        hit.intersection(&all).count(),
        all.len(),
        all.difference(&hit).collect::<Vec<_>>()
    );
    for site in ["write wal", "create sst", "write sst", "sync sst", "write MANIFEST"] {
        assert!(hit.contains(site), "no crash at {site}");
    }
}

#[test]
fn sync_always_loses_no_acknowledged_write_in_any_crash() {
    crash_at_every_operation(SyncMode::Always, 0);
}

#[test]
fn sync_always_with_several_trees_loses_nothing() {
    crash_at_every_operation(SyncMode::Always, 2);
}

#[test]
fn sync_interval_survives_kills_and_keeps_a_prefix_after_power_cuts() {
    crash_at_every_operation(SyncMode::Interval(Duration::from_millis(2)), 1);
}

#[test]
fn sync_never_survives_kills_and_keeps_a_prefix_after_power_cuts() {
    crash_at_every_operation(SyncMode::Never, 1);
}

/// Writes covered by an interval sync survive a power cut without a flush or close.
#[test]
fn an_interval_sync_bounds_the_loss() {
    let options = small(SyncMode::Interval(Duration::from_millis(1)), 1);
    for seed in 1..=20 * effort() {
        let disk = MemDisk::new();
        let db = open(&disk, &options).unwrap();
        let (mut history, mut random) = (History::default(), Random::new(seed));
        let mut write = |n| {
            for _ in 0..n {
                db.write_batch(batch(history.next(&mut random))).unwrap();
            }
            history.batches.len()
        };
        let synced = write(10);
        // A sync may have started before the last batch; the next completed sync covers the batch.
        for _ in 0..2 {
            let before = db.stats().wal_syncs;
            write(1);
            wait_for("an interval sync", || db.stats().wal_syncs > before);
        }
        write(10);
        let crashed = disk.crash(seed);
        drop(db);
        let moment = history.count_batches(&reopen(&crashed, &options));
        assert!(moment >= synced, "{moment} batches are there, {synced} had been synced");
    }
}

/// Mistake 8 of `docs/results/reliability.md`: after a failed sync the page cache shows data that
/// the disk does not have. A recovery must not rely on the page cache.
#[test]
fn recovery_makes_records_found_in_the_page_cache_durable() {
    for sync in [SyncMode::Always, SyncMode::Interval(Duration::from_millis(1))] {
        for fail_after in 0..6 {
            let options = small(sync, 0);
            let disk = MemDisk::new();
            let db = open(&disk, &options).unwrap();
            let (mut history, mut random) = (History::default(), Random::new(fail_after));
            disk.fail(Fault::once(Op::Sync, 5).suffix(".wal").after(fail_after));
            let mut acknowledged = 0;
            while db.write_batch(batch(history.next(&mut random))).is_ok() {
                acknowledged += 1;
                assert!(acknowledged < 100_000, "a failed sync never shows");
            }
            let restarted = disk.process_crash();
            drop(db);
            let db = reopen(&restarted, &options);
            let found = history.count_batches(&db);
            assert!(found >= acknowledged);
            let cut = restarted.crash(1);
            drop(db);
            let again = history.count_batches(&reopen(&cut, &options));
            assert!(again >= found, "{found} batches were recovered, {again} are there now");
        }
    }
}
