use bytes::Bytes;
use lsm::{MemDisk, Options, Version};
use protocol::{
    Clock, Filter, Incarnation, Logs, Member, Membership, MembershipState, NodeId, Topology,
};
use server::PageWork;
use tokio::runtime::Builder;

use super::*;

/// A range read of this node's client.
const OWN: OpId = OpId::Slot(protocol::SlotId(1));

const READ_TIMEOUT: Duration = Duration::from_secs(30);

fn db(disk: &MemDisk) -> Arc<Db> {
    let options = Options { cache_bytes: 1 << 16, segment_bytes: 1 << 20, ..Options::default() };
    Arc::new(Db::open(Arc::new(disk.clone()), options).unwrap())
}

fn pool(db: &Arc<Db>, threads: usize, bound: usize) -> ReadPool {
    let pages = Arc::new(Pages::new(1 << 20, PageWork::SERVING));
    ReadPool::start(db, &alone(), &pages, threads, bound).unwrap()
}

/// Returns the shared protocol state of a cluster with one node.
fn alone() -> Arc<protocol::Shared> {
    let member = Member { name: "a".to_owned(), zone: String::new(), weight: 1 };
    let topology = Topology::new(vec![member], 3).unwrap();
    let (clock, logs) = (Arc::new(Clock::start(1, 0, 0)), Arc::new(Logs::first(Incarnation(1))));
    let membership = Membership::new(MembershipState::Member, 0, true);
    Arc::new(protocol::Shared::new(topology, NodeId(0), clock, membership, 0, logs))
}

/// Returns a request for a page of all keys.
fn all() -> PageRequest {
    let filter = Filter::Chosen { ack: 1, from: 1, preference: vec![NodeId(0)] };
    PageRequest { start: Bytes::new(), end: None, filter, max_bytes: protocol::PAGE_BYTES }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

#[test]
fn reads_that_would_block_the_loop_succeed_in_the_pool() {
    let disk = MemDisk::new();
    let db = db(&disk);
    let version = Version { time: 1, origin: 0 };
    let key = |number: u32| number.to_be_bytes();
    for number in 0..1_000 {
        db.put(Space::Data, &key(number), version, &[number as u8; 1000]).unwrap();
    }
    db.flush().unwrap();
    disk.set_cold(true);
    let pool = pool(&db, 2, 10);
    let mut blocked = 0;
    for number in (0..1_000).step_by(97) {
        let inline = db.engine().get(Space::Data, &key(number), ReadMode::NonBlocking).unwrap();
        blocked += u32::from(matches!(inline, lsm::Lookup::WouldBlock));
        let lsm::Lookup::Found(found) =
            block_on(pool.get(Space::Data, &key(number), 0, READ_TIMEOUT)).unwrap()
        else {
            panic!("{number} is not found")
        };
        assert_eq!(found.value(), [number as u8; 1000][..]);
    }
    assert!(blocked > 0, "nothing ever blocked");
    let absent = block_on(pool.get(Space::Data, b"absent", 0, READ_TIMEOUT)).unwrap();
    assert!(matches!(absent, lsm::Lookup::Absent));
    pool.stop();
}

#[test]
fn a_full_queue_refuses_gets_and_waiting_gets_time_out() {
    let db = db(&MemDisk::new());
    let nobody = pool(&db, 0, 2);
    block_on(async {
        let wait = Duration::from_millis(10);
        let (one, two, three) = tokio::join!(
            nobody.get(Space::Data, b"a", 0, wait),
            nobody.get(Space::Data, b"b", 0, wait),
            nobody.get(Space::Data, b"c", 0, wait)
        );
        assert!(matches!(one, Err(ReadError::Deadline)));
        assert!(matches!(two, Err(ReadError::Deadline)));
        assert!(matches!(three, Err(ReadError::QueueFull)));
    });
    assert_eq!(nobody.count_waiting(), (2, 0));
}

#[test]
fn every_fourth_job_is_a_page() {
    let mut queues = Queues::default();
    let get = || {
        let (reply, _) = oneshot::channel();
        Get {
            space: Space::Data,
            key: Box::default(),
            deadline: Instant::now(),
            room: 0,
            reply,
            since: None,
        }
    };
    let page = || {
        let (reply, _) = oneshot::channel();
        let scan = ScanJob::Page { op: OWN, request: all(), reply };
        NextPage { scan, until: Instant::now(), since: None }
    };
    queues.gets.extend((0..6).map(|_| get()));
    queues.pages.extend((0..3).map(|_| page()));
    let order: String = std::iter::from_fn(|| queues.next())
        .map(|job| if matches!(job, Job::Get(_)) { 'g' } else { 'p' })
        .collect();
    assert_eq!(order, "gggpgggpp");
}

/// Parses the name and nice value of a process or thread from its `stat` file in `/proc`.
fn nice_of(stat: &str) -> Option<(&str, i32)> {
    let (before, after) = stat.rsplit_once(") ")?;
    // The fields after the name are: state, 15 others, nice.
    Some((before.split_once('(')?.1, after.split(' ').nth(16)?.parse().ok()?))
}

/// Returns the nice values of this process's threads whose names start with `name`.
fn niceness(name: &str) -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread that has ended meanwhile has no `stat` file.
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let niceness = stats.filter_map(|stat| {
        let (named, nice) = nice_of(&stat)?;
        named.starts_with(name).then_some(nice)
    });
    niceness.collect()
}

/// Reads of clients do not wait behind repair and rebalance streams, and have priority for the CPU.
#[test]
fn background_reads_run_on_threads_of_low_priority() {
    let db = db(&MemDisk::new());
    let nobody = pool(&db, 0, 10);
    let until = Instant::now() + READ_TIMEOUT;
    let _page = nobody.page(OWN, all(), Class::Client, until);
    for class in [Class::Hint, Class::Repair, Class::Stream] {
        drop(nobody.page(OWN, all(), class, until));
    }
    assert_eq!(nobody.shared.lock().pages.len(), 1);
    assert_eq!(nobody.streams.lock().pages.len(), 3);
    let pool = pool(&db, 3, 10);
    assert!(block_on(pool.page(OWN, all(), Class::Stream, until)).unwrap().is_ok());
    // The process may have been started with `nice`. The maximum is 19.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, own) = nice_of(&stat).unwrap();
    let low = (own + STREAM_NICE).min(19);
    // Each thread sets its name when it begins to run. Threads of other tests may have begun just
    // now.
    let all_have = |name, count, wanted| {
        let found = niceness(name);
        found.len() >= count && found.iter().all(|nice| *nice == wanted)
    };
    while !all_have("stream-", STREAM_THREADS, low) || !all_have("read-", 3, own) {
        assert!(Instant::now() < until, "{:?} {:?}", niceness("stream-"), niceness("read-"));
        thread::yield_now();
    }
    pool.stop();
}

#[test]
fn a_page_past_its_deadline_is_not_read() {
    let db = db(&MemDisk::new());
    let pool = pool(&db, 1, 1000);
    let late = pool.page(OWN, all(), Class::Client, Instant::now());
    assert!(block_on(late).is_err(), "it is left");
    pool.stop();
}

#[test]
fn stopping_the_pool_completes_queued_pages() {
    let db = db(&MemDisk::new());
    let pool = pool(&db, 1, 1000);
    let until = Instant::now() + READ_TIMEOUT;
    let pages: Vec<_> = (0..10).map(|_| pool.page(OWN, all(), Class::Client, until)).collect();
    pool.stop();
    for page in pages {
        assert!(block_on(page).unwrap().is_ok());
    }
    assert_eq!(Arc::strong_count(&db), 1, "the threads let go of the store");
}
