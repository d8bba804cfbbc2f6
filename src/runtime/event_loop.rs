//! An event loop: one thread with a tokio `current_thread` runtime, its share of the connections,
//! and its own writes and counters. Nothing in here is shared with another loop but [`Node`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cluster::NodeEvent;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use node::{Loop, Purpose, records};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use crate::counters::Counters;
use crate::http;
use crate::http::connection::{Scratch, Socket, TICK, Watch};
use crate::http::etags::Etags;
use crate::node::Node;
use crate::node::comparison;
use crate::node::coordinate::Coordination;
use crate::node::gate::Gate;
use crate::node::places::Place;
use crate::node::task;
use crate::node::writes::Writes;
use crate::peers::{self, FromPeers, Peers};
use crate::settings::memory::LONG_RECORD;

/// The most that hyper buffers of a connection in either direction, in bytes: a large body is read
/// in few pieces, and a request's head (at most [`http::MAX_HEAD_LEN`]) fits.
const BUFFER_BYTES: usize = 64 * 1024;

/// Sockets on their way from the acceptor to a loop.
const HANDOVER: usize = 256;

/// How long requests in flight may take when the node stops.
const DRAIN: Duration = Duration::from_secs(10);

/// What a loop is told.
#[derive(Debug)]
pub(crate) enum Told {
    /// Serve this one, who has such a place.
    Serve(TcpStream, Place),
    /// Somebody waits: close the client that has been idle for longest.
    CloseIdleClient,
    /// Somebody waits: close the guest that has owed a request for longest.
    CloseGuest,
    /// Finish what is in flight and end.
    Stop,
}

/// Another thread's hold on a loop.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Tells the loop something.
    pub(crate) tell: mpsc::Sender<Told>,
    /// What the loop counts.
    pub(crate) counters: Arc<Counters>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Waits for the loop's end.
    pub(crate) fn join(self) {
        // A panic in there was printed.
        let _ = self.thread.join();
    }
}

/// One loop's state, shared by its tasks.
pub(crate) struct EventLoop {
    /// What all loops share.
    pub(crate) node: Arc<Node>,
    /// This loop's writes.
    pub(crate) writes: Writes<Purpose>,
    /// How many long ones are under way.
    pub(crate) gate: Gate,
    /// This loop's part in the protocol.
    pub(crate) coordination: Coordination,
    /// This loop's connections to the other nodes.
    pub(crate) peers: Peers,
    /// This loop's counters.
    pub(crate) counters: Arc<Counters>,
    /// Makes version tags.
    pub(crate) etags: Etags,
    now: Rc<Cell<u32>>,
    stopping: Cell<bool>,
    watches: RefCell<Vec<Rc<Watch>>>,
    scratch: Scratch,
}

/// Starts loop `number` of `node`.
pub(crate) fn start(node: &Arc<Node>, number: usize) -> io::Result<Handle> {
    let (tell, told) = mpsc::channel(HANDOVER);
    let counters = Arc::clone(&node.counters[number]);
    let (node, own) = (Arc::clone(node), Arc::clone(&counters));
    let (report, started) = std::sync::mpsc::sync_channel(1);
    let thread = thread::Builder::new().name(format!("loop-{number}")).spawn(move || {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_io().enable_time().build_local(LocalOptions::default());
        // The one who starts us waits for this.
        let _ = report.send(runtime.as_ref().map(drop).map_err(io::Error::kind));
        if let Ok(runtime) = runtime {
            runtime.block_on(EventLoop::new(node, own).run(told));
        }
    })?;
    started.recv().map_err(|_| io::Error::other("its thread ended"))??;
    Ok(Handle { tell, counters, thread })
}

/// What comes from the other nodes goes to the coordinator, or to the node's task.
fn hear(event_loop: Weak<EventLoop>) -> peers::Sink {
    Rc::new(move |heard| {
        let Some(this) = event_loop.upgrade() else { return };
        match heard {
            FromPeers::Event(event) => this.happen(event),
            FromPeers::Met { peer, incarnation, knows_us } => {
                let met = NodeEvent::Met { peer, incarnation, knows_us };
                tokio::task::spawn_local(async move { task::tell(&this.node, met.into()).await });
            }
            FromPeers::Fenced => {
                let fenced = NodeEvent::Fenced;
                tokio::task::spawn_local(
                    async move { task::tell(&this.node, fenced.into()).await },
                );
            }
        }
    })
}

impl EventLoop {
    fn new(node: Arc<Node>, counters: Arc<Counters>) -> Rc<Self> {
        let config = node.config.clone();
        let share = config.memory.waiting_bytes as usize / config.loops;
        let bodies = config.memory.body_bytes as usize / config.loops;
        let protocol = cluster::Config {
            deadline_micros: config.deadline.as_micros() as u64,
            max_skew_micros: config.max_clock_skew.as_micros() as u64,
            brief_bytes: LONG_RECORD as u32,
            codec: records::CODEC,
        };
        let (shared, identity) = (Arc::clone(&node.shared), Arc::clone(&node.identity));
        let part = Loop::new(shared, identity, protocol, share);
        Rc::new_cyclic(|this: &Weak<Self>| {
            let own = Weak::clone(this);
            let sink = Box::new(move |purpose, outcome: &_| {
                if let Some(this) = own.upgrade() {
                    this.written(purpose, outcome);
                }
            });
            let facts = Arc::clone(&node.facts);
            let peers = Peers::new(facts, Arc::clone(&counters), hear(this.clone()));
            let db = Arc::clone(&node.db);
            let writes = Writes::new(db, Arc::clone(&counters), config.sync, share, sink);
            Self {
                writes,
                gate: Gate::new(config.max_value, bodies, config.deadline),
                coordination: Coordination::new(part),
                peers,
                counters,
                etags: Etags::default(),
                now: Rc::new(Cell::new(0)),
                stopping: Cell::new(false),
                watches: RefCell::default(),
                scratch: Scratch::default(),
                node,
            }
        })
    }

    async fn run(self: Rc<Self>, mut told: mpsc::Receiver<Told>) {
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.writes.commit_turns().await });
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.writes.take_outcomes().await });
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.sweep().await });
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.tick().await });
        let this = Rc::clone(&self);
        tokio::task::spawn_local(async move { this.peers.run().await });
        let events = self.node.task_events.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(events) = events {
            self.peers.keep_all();
            tokio::task::spawn_local(task::run(Rc::clone(&self), events));
            let this = Rc::clone(&self);
            tokio::task::spawn_local(async move { comparison::run(&this).await });
        }
        loop {
            match told.recv().await {
                Some(Told::Serve(stream, place)) => self.serve(stream, place),
                Some(Told::CloseIdleClient) => self.close_idle_client(),
                Some(Told::CloseGuest) => self.close_longest(Watch::owing),
                Some(Told::Stop) | None => break,
            }
        }
        self.stopping.set(true);
        self.peers.goodbye();
        for watch in self.watches.borrow().iter() {
            watch.wake();
        }
        let begun = Instant::now();
        while !self.watches.borrow().is_empty() && begun.elapsed() < DRAIN {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let left = self.watches.borrow().len();
        if left > 0 {
            tracing::warn!(connections = left, "closing connections: still busy after {DRAIN:?}");
            self.cut_off().await;
        }
        self.peers.close().await;
    }

    /// Ends the connections that are left, each so that its client can tell.
    async fn cut_off(&self) {
        for watch in self.watches.borrow().iter() {
            watch.break_off();
            watch.give_up();
        }
        // Their tasks run before this one does again.
        tokio::task::yield_now().await;
    }

    /// Looks at all connections and writes once a tick. Never ends.
    async fn sweep(&self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.now.set(self.now.get().wrapping_add(1));
            for watch in self.watches.borrow().iter() {
                if watch.sweep() {
                    self.counters.reaped.add(1);
                }
            }
            self.tell_idle();
            self.make_way();
        }
    }

    /// Where others wait for memory, the slowest of those who have it give way.
    fn make_way(&self) {
        let node = &self.node;
        let watches = self.watches.borrow();
        let wanted = node.bodies.wanted();
        if wanted > 0 {
            let slow = watches.iter().filter_map(|watch| Some((watch.slow_pace()?, watch)));
            let mut slow: Vec<_> = slow.collect();
            slow.sort_by_key(|(pace, _)| *pace);
            let mut given = 0;
            for (_, watch) in slow {
                if given >= wanted {
                    break;
                }
                given += watch.give_way();
                self.counters.gave_way.add(1);
            }
        }
        if node.answers.wanted() > 0 {
            for watch in watches.iter().filter(|watch| watch.is_unread()) {
                watch.cut_off();
                self.counters.gave_way.add(1);
            }
        }
    }

    /// Closes the client that has been idle for longest, if there is one.
    pub(crate) fn close_idle_client(&self) {
        self.close_longest(Watch::idle_ticks);
        self.tell_idle();
    }

    fn close_longest<T: Ord + Copy>(&self, time: impl Fn(&Watch) -> Option<T>) {
        let watches = self.watches.borrow();
        let left = watches.iter().filter(|watch| !watch.reaped());
        let longest = left.filter_map(|watch| Some((time(watch)?, watch)));
        if let Some((_, watch)) = longest.max_by_key(|(time, _)| *time) {
            watch.give_up();
            self.counters.evicted.add(1);
        }
    }

    /// Tells the acceptor how long the client has been idle that was so for longest.
    fn tell_idle(&self) {
        let watches = self.watches.borrow();
        let left = watches.iter().filter(|watch| !watch.reaped());
        let longest = left.filter_map(|watch| watch.idle_ticks()).max();
        self.counters.idle_ticks.store(longest.unwrap_or(0), Ordering::Relaxed);
    }

    fn serve(self: &Rc<Self>, stream: TcpStream, place: Place) {
        let stream = match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "dropped a connection: epoll registration failed");
                self.counters.connections.fetch_sub(1, Ordering::Relaxed);
                self.node.places.leave(place);
                return;
            }
        };
        let watch = Watch::new(Rc::clone(&self.now), place);
        watch.client.set(stream.peer_addr().ok());
        {
            let mut watches = self.watches.borrow_mut();
            watch.index.set(watches.len());
            watches.push(Rc::clone(&watch));
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            this.converse(stream, &watch).await;
            this.forget(&watch);
        });
    }

    fn forget(&self, watch: &Watch) {
        let mut watches = self.watches.borrow_mut();
        let index = watch.index.get();
        watches.swap_remove(index);
        if let Some(moved) = watches.get(index) {
            moved.index.set(index);
        }
        self.counters.connections.fetch_sub(1, Ordering::Relaxed);
        self.node.places.leave(watch.place());
    }

    /// Serves one connection to its end.
    async fn converse(self: &Rc<Self>, stream: tokio::net::TcpStream, watch: &Rc<Watch>) {
        let service =
            service_fn(|request| http::answer(Rc::clone(self), Rc::clone(watch), request));
        let socket = TokioIo::new(Socket::new(stream, Rc::clone(watch), Rc::clone(&self.scratch)));
        let mut connection = http1::Builder::new()
            .half_close(true)
            .max_buf_size(BUFFER_BYTES)
            .max_header_size(http::MAX_HEAD_LEN)
            .serve_connection(socket, service);
        let mut told = false;
        let result = poll_fn(|cx| {
            if watch.reaped() {
                return Poll::Ready(Ok(()));
            }
            if self.stopping.get() && !told {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            watch.attend(cx.waker());
            Pin::new(&mut connection).poll(cx)
        })
        .await;
        if result.is_err_and(|error| error.is_parse()) {
            self.counters.malformed.add(1);
        }
        let parts = connection.into_parts();
        if let Some(stream) = parts.io.into_inner().end() {
            self.peers.upgrade(stream, parts.read_buf);
        }
    }

    /// Whether what never ends by itself is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The cluster as quorums see it.
    pub(crate) fn replication(&self) -> http::Replication {
        let nodes = self.node.shared.nodes() as u32;
        http::Replication { nodes, replicas: u32::from(self.node.config.replicas) }
    }
}
