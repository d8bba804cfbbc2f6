use std::rc::Rc;
use std::time::Duration;

use lsm::disk::{Fault, Op};
use lsm::{MemDisk, Options, Space, Version};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_local, yield_now};

use super::*;

const SYNCS: [SyncMode; 3] =
    [SyncMode::Always, SyncMode::Never, SyncMode::Interval(Duration::from_secs(1))];

type Outcomes = Rc<RefCell<Vec<(u64, bool)>>>;

struct Fixture {
    disk: MemDisk,
    counters: Arc<Counters>,
    writes: Rc<Writes<u64>>,
    /// The outcomes that the sink received: the write's number, and true if it was stored.
    outcomes: Outcomes,
}

fn fixture(sync: SyncMode, waiting_bytes: usize) -> Fixture {
    let disk = MemDisk::new();
    let options = Options { sync, segment_bytes: 1 << 20, ..Options::default() };
    let db = Arc::new(Db::open(Arc::new(disk.clone()), options).unwrap());
    let (counters, outcomes) = (Arc::new(Counters::default()), Outcomes::default());
    let reported = Rc::clone(&outcomes);
    let sink = Box::new(move |key, outcome: &_| {
        reported.borrow_mut().push((key, Result::is_ok(outcome)));
    });
    let writes = Writes::new(db, Arc::clone(&counters), sync, waiting_bytes, sink);
    Fixture { disk, counters, writes: Rc::new(writes), outcomes }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(test);
}

fn run(writes: &Rc<Writes<u64>>) {
    let this = Rc::clone(writes);
    spawn_local(async move { this.commit_batches().await });
    let this = Rc::clone(writes);
    spawn_local(async move { this.take_outcomes().await });
}

fn put(writes: &Writes<u64>, key: u64) -> Result<(), WriteError> {
    writes.add(100, key, |batch| {
        let version = Version { time: key + 1, origin: 0 };
        batch.put(Space::Data, &key.to_be_bytes(), version, b"value")
    })
}

/// Waits for `count` outcomes, and removes them.
async fn wait_for_outcomes(outcomes: &Outcomes, count: usize) -> Vec<(u64, bool)> {
    while outcomes.borrow().len() < count {
        yield_now().await;
    }
    outcomes.take()
}

#[test]
fn the_writes_of_a_turn_are_one_batch() {
    for sync in SYNCS {
        on_a_loop(async {
            let Fixture { counters, writes, outcomes, .. } = fixture(sync, 1 << 20);
            run(&writes);
            yield_now().await;
            for turn in 0..3 {
                for key in 0..64 {
                    let writes = Rc::clone(&writes);
                    spawn_local(async move { put(&writes, turn * 64 + key).unwrap() });
                }
                let reported = wait_for_outcomes(&outcomes, 64).await;
                assert!(reported.iter().all(|(_, stored)| *stored));
                assert_eq!(counters.batches.get(), turn + 1, "{sync:?}");
            }
            assert_eq!(counters.batched_writes.get(), 3 * 64);
            assert_eq!(counters.waiting_bytes.get(), 0);
            for key in 0..3 * 64_u64 {
                let found = writes.db.get(Space::Data, &key.to_be_bytes()).unwrap().unwrap();
                assert_eq!(found.value(), b"value"[..]);
            }
        });
    }
}

#[test]
fn a_failed_log_fails_all_waiting_writes() {
    for (sync, op) in [(SyncMode::Always, Op::Sync), (SyncMode::Never, Op::Write)] {
        on_a_loop(async {
            let Fixture { disk, writes, outcomes, .. } = fixture(sync, 1 << 20);
            run(&writes);
            put(&writes, 0).unwrap();
            assert_eq!(wait_for_outcomes(&outcomes, 1).await, [(0, true)]);
            disk.fail(Fault::forever(op, 5));
            put(&writes, 1).unwrap();
            put(&writes, 2).unwrap();
            assert_eq!(wait_for_outcomes(&outcomes, 2).await, [(1, false), (2, false)], "{sync:?}");
            disk.clear_faults();
            let refused = put(&writes, 3).is_err();
            assert!(refused || wait_for_outcomes(&outcomes, 1).await == [(3, false)]);
        });
    }
}

#[test]
fn the_bytes_of_waiting_writes_are_bounded() {
    on_a_loop(async {
        let Fixture { writes, outcomes, .. } = fixture(SyncMode::Never, 250);
        put(&writes, 0).unwrap();
        put(&writes, 1).unwrap();
        assert!(matches!(put(&writes, 2), Err(WriteError::Busy)));
        run(&writes);
        assert_eq!(wait_for_outcomes(&outcomes, 2).await, [(0, true), (1, true)]);
        put(&writes, 2).unwrap();
        assert_eq!(wait_for_outcomes(&outcomes, 1).await, [(2, true)]);
        let alone = fixture(SyncMode::Never, 10).writes;
        assert!(put(&alone, 0).is_ok(), "one is always taken");
    });
}

#[test]
fn a_large_batch_does_not_wait_for_the_turn() {
    let Fixture { counters, writes, outcomes, .. } = fixture(SyncMode::Never, usize::MAX);
    let value = vec![0; BATCH_BYTES / 2];
    for key in 0..4_u8 {
        let version = Version { time: 1, origin: 0 };
        let put = |batch: &mut Batch| batch.put(Space::Data, &[key], version, &value);
        writes.add(value.len(), u64::from(key), put).unwrap();
    }
    assert_eq!(counters.batches.get(), 2, "without a committer");
    assert_eq!(outcomes.take().len(), 4);
}
