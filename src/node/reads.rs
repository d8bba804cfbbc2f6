//! The read pool: threads for what an event loop must not wait for.
//!
//! ```text
//!  loops ──▶ gets  (at most `--queue`; full = refused) ──┐
//!        ──▶ pages (one a range read, so bounded too)  ──┴▶ threads ──▶ answers, each to its loop
//! ```
//!
//! Gets go first, but every fourth job is a page if one waits; of pages those that clients wait for
//! go first, but every fourth is another: no kind starves the others.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cluster::{Class, CompareRequest, Compared, OpId, Page, PageRequest, StoreError};
use lsm::{Db, Lookup, Space, Wait};
use node::Pages;
use profile::{Kind, Place};
use tokio::sync::oneshot;

/// Every so many jobs a page goes before a get, and every so many pages one that no client waits
/// for before those that one does.
const PAGE_TURN: u32 = 4;

/// Where it is waited, for profiles.
static QUEUES: Place = Place::new(Kind::Lock, "read pool: queue lock");
static QUEUED: Place = Place::new(Kind::Queue, "reads: waiting for a pool thread");
static NO_READ: Place = Place::new(Kind::Idle, "read pool: idle");

/// Why a read was not done.
#[derive(Debug, Clone)]
pub(crate) enum ReadError {
    /// Too many wait already.
    QueueFull,
    /// Its time was up before a thread came to it, or while it was read.
    Deadline,
    /// There was no room in memory for what it reads.
    NoRoom,
    /// The store could not.
    Store(lsm::Error),
}

struct Get {
    space: Space,
    key: Box<[u8]>,
    deadline: Instant,
    /// Memory that it may take for a long record.
    room: usize,
    reply: oneshot::Sender<Result<Lookup, ReadError>>,
    /// Since when, while that is recorded.
    since: Option<Instant>,
}

struct NextPage {
    scan: Scan,
    until: Instant,
    since: Option<Instant>,
}

/// What is read of a range of keys, and who waits for it.
enum Scan {
    Page { op: OpId, request: PageRequest, reply: oneshot::Sender<Result<Page, StoreError>> },
    Compare { request: CompareRequest, reply: oneshot::Sender<Result<Compared, StoreError>> },
}

impl Scan {
    fn is_closed(&self) -> bool {
        match self {
            Self::Page { reply, .. } => reply.is_closed(),
            Self::Compare { reply, .. } => reply.is_closed(),
        }
    }

    /// A reply that nobody waits for any more is dropped.
    fn read(self, db: &Db, cluster: &cluster::Shared, pages: &Pages) {
        match self {
            Self::Page { op, request, reply } => {
                let _ = reply.send(pages.read(db.engine(), cluster, op, &request));
            }
            Self::Compare { request, reply } => {
                let _ = reply.send(node::compare(db.engine(), cluster, &request));
            }
        }
    }
}

enum Job {
    Get(Get),
    NextPage(NextPage),
}

/// The threads and their queues.
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    bound: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    queues: profile::Mutex<Queues>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queues {
    gets: VecDeque<Get>,
    /// Pages that clients wait for.
    pages: VecDeque<NextPage>,
    /// All others: nodes that are repaired.
    streams: VecDeque<NextPage>,
    turn: u32,
    page_turn: u32,
    closed: bool,
}

impl Queues {
    fn next(&mut self) -> Option<Job> {
        self.turn = self.turn.wrapping_add(1);
        let page_first = self.turn.is_multiple_of(PAGE_TURN);
        let page = |queues: &mut Self| queues.next_page().map(Job::NextPage);
        let get = |queues: &mut Self| queues.gets.pop_front().map(Job::Get);
        if page_first { page(self).or_else(|| get(self)) } else { get(self).or_else(|| page(self)) }
    }

    fn next_page(&mut self) -> Option<NextPage> {
        self.page_turn = self.page_turn.wrapping_add(1);
        let [first, then] = if self.page_turn.is_multiple_of(PAGE_TURN) {
            [&mut self.streams, &mut self.pages]
        } else {
            [&mut self.pages, &mut self.streams]
        };
        first.pop_front().or_else(|| then.pop_front())
    }
}

impl Shared {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    fn work(&self, db: &Db, cluster: &cluster::Shared, pages: &Pages) {
        let mut queues = self.lock();
        loop {
            let Some(job) = queues.next() else {
                if queues.closed {
                    return;
                }
                let wait = || self.arrived.wait(queues).unwrap_or_else(PoisonError::into_inner);
                queues = NO_READ.during(wait);
                continue;
            };
            drop(queues);
            QUEUED.waited_since(match &job {
                Job::Get(get) => get.since,
                Job::NextPage(next) => next.since,
            });
            // A reply that nobody waits for any more is dropped.
            match job {
                Job::Get(get) if get.reply.is_closed() || get.deadline <= Instant::now() => {
                    let _ = get.reply.send(Err(ReadError::Deadline));
                }
                Job::Get(get) => {
                    let result = db.engine().get(get.space, &get.key, Wait::Within(get.room));
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
    /// Starts `threads` threads with room for `bound` waiting gets.
    pub(crate) fn start(
        db: &Arc<Db>,
        cluster: &Arc<cluster::Shared>,
        pages: &Arc<Pages>,
        threads: usize,
        bound: usize,
    ) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            queues: profile::Mutex::new(&QUEUES, Queues::default()),
            arrived: Condvar::new(),
        });
        let pool = Self { shared, bound, threads: Mutex::new(Vec::new()) };
        for number in 0..threads {
            let (shared, db) = (Arc::clone(&pool.shared), Arc::clone(db));
            let (cluster, pages) = (Arc::clone(cluster), Arc::clone(pages));
            let thread = thread::Builder::new()
                .name(format!("read-{number}"))
                .spawn(move || shared.work(&db, &cluster, &pages))
                .map_err(|error| format!("cannot start a read thread: {error}"))?;
            pool.threads().push(thread);
        }
        Ok(pool)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest record of `key`, if it takes no more than `room` bytes of memory beyond what
    /// every read may. Waits for a thread and the disk, but not longer than `wait`.
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
            // The sender is dropped unanswered only when the pool stops.
            Ok(Err(_)) | Err(_) => Err(ReadError::Deadline),
        }
    }

    /// Asks for a page that nobody waits for after `until`: then there is no answer.
    pub(crate) fn page(
        &self,
        op: OpId,
        request: PageRequest,
        class: Class,
        until: Instant,
    ) -> oneshot::Receiver<Result<Page, StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.scan(Scan::Page { op, request, reply }, class, until);
        answer
    }

    /// Asks what the store holds, for a comparison that nobody waits for after `until`.
    pub(crate) fn compare(
        &self,
        request: CompareRequest,
        class: Class,
        until: Instant,
    ) -> oneshot::Receiver<Result<Compared, StoreError>> {
        let (reply, answer) = oneshot::channel();
        self.scan(Scan::Compare { request, reply }, class, until);
        answer
    }

    fn scan(&self, scan: Scan, class: Class, until: Instant) {
        let next = NextPage { scan, until, since: profile::queued() };
        {
            let mut queues = self.shared.lock();
            match class {
                Class::Client => queues.pages.push_back(next),
                Class::Hint | Class::Repair | Class::Stream => queues.streams.push_back(next),
            }
        }
        self.shared.arrived.notify_one();
    }

    /// Gets and pages that wait for a thread.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let queues = self.shared.lock();
        (queues.gets.len(), queues.pages.len() + queues.streams.len())
    }

    /// Finishes what waits and ends the threads.
    pub(crate) fn stop(&self) {
        self.shared.lock().closed = true;
        self.shared.arrived.notify_all();
        for thread in self.threads().drain(..) {
            // A panic in there was printed; there is nothing to recover.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
