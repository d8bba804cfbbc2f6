use std::time::Duration;

use lsm::disk::{Fault, Op};
use lsm::{MemDisk, Options, Space, Version};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::{spawn_local, yield_now};

use super::*;

const SYNCS: [SyncMode; 3] =
    [SyncMode::Always, SyncMode::Never, SyncMode::Interval(Duration::from_secs(1))];

struct Fixture {
    disk: MemDisk,
    now: Rc<Cell<u32>>,
    counters: Arc<Counters>,
    writes: Rc<Writes>,
}

fn fixture(sync: SyncMode, waiting_bytes: usize) -> Fixture {
    let disk = MemDisk::new();
    let options = Options { sync, segment_bytes: 1 << 20, ..Options::default() };
    let db = Arc::new(Db::open(Arc::new(disk.clone()), options).unwrap());
    let (now, counters) = (Rc::new(Cell::new(0)), Arc::new(Counters::default()));
    let limits = Limits { waiting_bytes, deadline_ticks: 4 };
    let writes = Writes::new(db, Arc::clone(&counters), sync, limits, Rc::clone(&now));
    Fixture { disk, now, counters, writes: Rc::new(writes) }
}

fn on_a_loop(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(test);
}

fn run(writes: &Rc<Writes>) {
    let this = Rc::clone(writes);
    spawn_local(async move { this.commit_turns().await });
    let this = Rc::clone(writes);
    spawn_local(async move { this.take_outcomes().await });
}

fn put(writes: &Writes, key: u64) -> Result<Written, WriteError> {
    writes.add(100, |batch| {
        let version = Version { time: key + 1, origin: 0 };
        batch.put(Space::Data, &key.to_be_bytes(), version, b"value")
    })
}

#[test]
fn the_writes_of_a_turn_are_one_batch() {
    for sync in SYNCS {
        on_a_loop(async {
            let Fixture { counters, writes, .. } = fixture(sync, 1 << 20);
            run(&writes);
            yield_now().await;
            for turn in 0..3 {
                let tasks: Vec<_> = (0..64)
                    .map(|key| {
                        let writes = Rc::clone(&writes);
                        spawn_local(async move { put(&writes, turn * 64 + key).unwrap().await })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap().unwrap();
                }
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
fn a_failed_log_is_everybodys_error() {
    for (sync, op) in [(SyncMode::Always, Op::Sync), (SyncMode::Never, Op::Write)] {
        on_a_loop(async {
            let Fixture { disk, writes, .. } = fixture(sync, 1 << 20);
            run(&writes);
            put(&writes, 0).unwrap().await.unwrap();
            disk.fail(Fault::forever(op, 5));
            let (one, other) = (put(&writes, 1).unwrap(), put(&writes, 2).unwrap());
            for written in [one, other] {
                assert!(matches!(written.await, Err(WriteError::Store(_))), "{sync:?}");
            }
            disk.clear_faults();
            let later = put(&writes, 3).unwrap().await;
            assert!(matches!(later, Err(WriteError::Store(lsm::Error::Failed { .. }))));
        });
    }
}

#[test]
fn what_takes_too_long_is_answered_and_counts_until_it_is_done() {
    on_a_loop(async {
        let Fixture { now, counters, writes, .. } = fixture(SyncMode::Always, 1 << 20);
        let (one, other) = (put(&writes, 1).unwrap(), put(&writes, 2).unwrap());
        now.set(4);
        writes.sweep();
        now.set(5);
        writes.sweep();
        assert!(matches!(one.await, Err(WriteError::Deadline)), "nobody commits");
        assert_eq!(counters.waiting_bytes.get(), 200);
        run(&writes);
        assert!(matches!(other.await, Err(WriteError::Deadline)), "the first outcome stands");
        while counters.waiting_bytes.get() > 0 {
            yield_now().await;
        }
        assert!(writes.db.get(Space::Data, &1_u64.to_be_bytes()).unwrap().is_some());
    });
}

#[test]
fn no_more_bytes_wait_than_may() {
    on_a_loop(async {
        let Fixture { writes, .. } = fixture(SyncMode::Never, 250);
        let taken = [put(&writes, 0).unwrap(), put(&writes, 1).unwrap()];
        assert!(matches!(put(&writes, 2), Err(WriteError::Busy)));
        run(&writes);
        for written in taken {
            written.await.unwrap();
        }
        put(&writes, 2).unwrap().await.unwrap();
        let alone = fixture(SyncMode::Never, 10).writes;
        assert!(put(&alone, 0).is_ok(), "one is always taken");
    });
}

#[test]
fn a_large_batch_does_not_wait_for_the_turn() {
    on_a_loop(async {
        let Fixture { counters, writes, .. } = fixture(SyncMode::Never, usize::MAX);
        let value = vec![0; BATCH_BYTES / 2];
        let mut written = Vec::new();
        for key in 0..4_u8 {
            let version = Version { time: 1, origin: 0 };
            let add = writes
                .add(value.len(), |batch| batch.put(Space::Data, &[key], version, &value))
                .unwrap();
            written.push(add);
        }
        assert_eq!(counters.batches.get(), 2, "without a committer");
        for written in written {
            written.await.unwrap();
        }
    });
}
