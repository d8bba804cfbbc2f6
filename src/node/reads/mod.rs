//! The read pool: threads for reads that would block an event loop.
//!
//! ```text
//!   loops ──▶ gets  (at most `--queue`; full = refused) ──┬▶ read-N ───▶ answers, each to its loop
//!         ──▶ pages (one per range read, so bounded)    ──┘                             ▲
//!         ──▶ pages and comparisons for a repair, a ──────▶ stream-N, at a low ─────────┘
//!             rebuild or a rebalance                        priority
//! ```
//!
//! Gets precede pages, but every fourth job is a page if a page waits, so neither starves the
//! other. Background streams use the CPU time that clients leave. The receiver of a stream works
//! only when data arrives, so the low priority of the reads limits the stream's cost on all nodes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lsm::{Db, Lookup, ReadMode, Space};
use parking_lot::{Condvar, Mutex, MutexGuard};
use profile::{WaitKind, WaitSite};
use protocol::{Class, CompareRequest, Compared, OpId, Page, PageRequest, StoreError};
use server::Pages;
use tokio::sync::oneshot;

/// Every `PAGE_TURN`-th job is a page, if a page waits.
const PAGE_TURN: u32 = 4;

/// Number of threads for background streams: one reads while the other waits for the disk.
const STREAM_THREADS: usize = 2;

/// Nice increment of the stream threads. If the loops use all of the CPU, it leaves the streams a
/// tenth. So a stream's reads still meet their deadline, and a stream thread soon releases a lock
/// that it holds.
const STREAM_NICE: i32 = 10;

/// Places where reads wait, with their names in profiles.
static QUEUES: WaitSite = WaitSite::new(WaitKind::Lock, "read pool: queue lock");
static QUEUED: WaitSite = WaitSite::new(WaitKind::Queue, "reads: waiting for a pool thread");
static NO_READ: WaitSite = WaitSite::new(WaitKind::Idle, "read pool: idle");

/// The reason why a read failed.
#[derive(Debug, Clone)]
pub(crate) enum ReadError {
    /// The queue is full.
    QueueFull,
    /// The deadline passed before the read was complete.
    Deadline,
    /// The memory for the record could not be reserved.
    NoRoom,
    /// The store's error.
    Store(lsm::Error),
}

struct Get {
    space: Space,
    key: Box<[u8]>,
    deadline: Instant,
    /// Memory reserved for a long record, in bytes.
    room: usize,
    reply: oneshot::Sender<Result<Lookup, ReadError>>,
    /// Time at which the read was queued; `None` if no profile is being recorded.
    since: Option<Instant>,
}

struct NextPage {
    scan: ScanJob,
    until: Instant,
    since: Option<Instant>,
}

/// A job that reads a range of keys, and the channel for its result.
enum ScanJob {
    Page { op: OpId, request: PageRequest, reply: oneshot::Sender<Result<Page, StoreError>> },
    Compare { request: CompareRequest, reply: oneshot::Sender<Result<Compared, StoreError>> },
}

impl ScanJob {
    fn is_closed(&self) -> bool {
        match self {
            Self::Page { reply, .. } => reply.is_closed(),
            Self::Compare { reply, .. } => reply.is_closed(),
        }
    }

    /// Reads the range. The result is dropped if no request waits for it.
    fn read(self, db: &Db, cluster: &protocol::Shared, pages: &Pages) {
        match self {
            Self::Page { op, request, reply } => {
                let _ = reply.send(pages.read(db.engine(), cluster, op, &request));
            }
            Self::Compare { request, reply } => {
                let _ = reply.send(server::compare(db.engine(), cluster, &request));
            }
        }
    }
}

enum Job {
    Get(Get),
    NextPage(NextPage),
}

/// The pool's threads and queues, for clients and for background streams.
pub(crate) struct ReadPool {
    /// The queue for clients.
    shared: Arc<ReadPoolState>,
    /// The queue for background streams.
    streams: Arc<ReadPoolState>,
    bound: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct ReadPoolState {
    queues: profile::Mutex<Queues>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queues {
    gets: VecDeque<Get>,
    pages: VecDeque<NextPage>,
    turn: u32,
    closed: bool,
}

impl Queues {
    fn next(&mut self) -> Option<Job> {
        self.turn = self.turn.wrapping_add(1);
        let page_first = self.turn.is_multiple_of(PAGE_TURN);
        let page = |queues: &mut Self| queues.pages.pop_front().map(Job::NextPage);
        let get = |queues: &mut Self| queues.gets.pop_front().map(Job::Get);
        if page_first { page(self).or_else(|| get(self)) } else { get(self).or_else(|| page(self)) }
    }
}

impl ReadPoolState {
    fn new() -> Arc<Self> {
        let queues = profile::Mutex::new(&QUEUES, Queues::default());
        Arc::new(Self { queues, arrived: Condvar::new() })
    }

    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    fn work(&self, db: &Db, cluster: &protocol::Shared, pages: &Pages) {
        let mut queues = self.lock();
        loop {
            let Some(job) = queues.next() else {
                if queues.closed {
                    return;
                }
                NO_READ.during(|| self.arrived.wait(&mut queues));
                continue;
            };
            drop(queues);
            QUEUED.waited_since(match &job {
                Job::Get(get) => get.since,
                Job::NextPage(next) => next.since,
            });
            // The result is dropped if no request waits for it.
            match job {
                Job::Get(get) if get.reply.is_closed() || get.deadline <= Instant::now() => {
                    let _ = get.reply.send(Err(ReadError::Deadline));
                }
                Job::Get(get) => {
                    let result = db.engine().get(get.space, &get.key, ReadMode::Limited(get.room));
                    let result = result.map_err(ReadError::Store);
                    let _ = get.reply.send(result);
                }
                Job::NextPage(next) if next.scan.is_closed() || next.until <= Instant::now() => {}
                Job::NextPage(next) => next.scan.read(db, cluster, pages),
            }
            queues = self.lock();
        }
    }
}

impl ReadPool {
    /// Starts `threads` read threads, with a queue of at most `bound` gets.
    pub(crate) fn start(
        db: &Arc<Db>,
        cluster: &Arc<protocol::Shared>,
        pages: &Arc<Pages>,
        threads: usize,
        bound: usize,
    ) -> io::Result<Self> {
        let (shared, streams) = (ReadPoolState::new(), ReadPoolState::new());
        let pool = Self { shared, streams, bound, threads: Mutex::new(Vec::new()) };
        let reads = (0..threads).map(|number| (&pool.shared, format!("read-{number}"), None));
        let streams = (0..threads.min(STREAM_THREADS))
            .map(|number| (&pool.streams, format!("stream-{number}"), Some(STREAM_NICE)));
        for (shared, name, nice) in reads.chain(streams) {
            let (shared, db) = (Arc::clone(shared), Arc::clone(db));
            let (cluster, pages) = (Arc::clone(cluster), Arc::clone(pages));
            let work = move || {
                if let Some(nice) = nice {
                    // `nice` applies to this thread only. If the system refuses it, clients wait a
                    // little longer.
                    let _ = rustix::process::nice(nice);
                }
                shared.work(&db, &cluster, &pages);
            };
            pool.threads().push(thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(pool)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock()
    }

    /// Returns the newest record of `key`, if it needs at most `room` bytes of memory beyond the
    /// limit of every read. Waits for a thread and the disk, up to `wait`.
    pub(crate) async fn get(
        &self,
        space: Space,
        key: &[u8],
        room: usize,
        wait: Duration,
    ) -> Result<Lookup, ReadError> {
        let (reply, answer) = oneshot::channel();
        let deadline = Instant::now() + wait;
        {
            let mut queues = self.shared.lock();
            if queues.gets.len() >= self.bound {
                return Err(ReadError::QueueFull);
            }
            let since = profile::queued();
            queues.gets.push_back(Get { space, key: key.into(), deadline, room, reply, since });
        }
        self.shared.arrived.notify_one();
        match tokio::time::timeout_at(deadline.into(), answer).await {
            Ok(Ok(result)) => result,
            // The sender is dropped without an answer only when the pool stops.
            Ok(Err(_)) | Err(_) => Err(ReadError::Deadline),
        }
    }

    /// Requests a page. If no thread has begun the request by `until`, it is dropped, and the
    /// receiver fails.
    pub(crate) fn page(
        &self,
        op: OpId,
        request: PageRequest,
        class: Class,
        until: Instant,
    ) -> oneshot::Receiver<Result<Page, StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.scan(ScanJob::Page { op, request, reply }, class, until);
        answer
    }

    /// Requests a comparison of the store's contents, with the rules of [`ReadPool::page`].
    pub(crate) fn compare(
        &self,
        request: CompareRequest,
        class: Class,
        until: Instant,
    ) -> oneshot::Receiver<Result<Compared, StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.scan(ScanJob::Compare { request, reply }, class, until);
        answer
    }

    fn scan(&self, scan: ScanJob, class: Class, until: Instant) {
        let next = NextPage { scan, until, since: profile::queued() };
        let shared = match class {
            Class::Client => &self.shared,
            Class::Hint | Class::Repair | Class::Stream => &self.streams,
        };
        shared.lock().pages.push_back(next);
        shared.arrived.notify_one();
    }

    /// Returns the number of gets and of pages that wait for a thread.
    pub(crate) fn count_waiting(&self) -> (usize, usize) {
        let streams = self.streams.lock().pages.len();
        let queues = self.shared.lock();
        (queues.gets.len(), queues.pages.len() + streams)
    }

    /// Completes the queued jobs, then ends the threads.
    pub(crate) fn stop(&self) {
        for shared in [&self.shared, &self.streams] {
            shared.lock().closed = true;
            shared.arrived.notify_all();
        }
        for thread in self.threads().drain(..) {
            // If the thread panicked, the panic was already printed, and there is nothing to
            // recover.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
