//! One event loop's connections to and from the other nodes.
//!
//! ```text
//!   this loop                                           a loop of peer B
//!   ┌───────────────┐  requests ─▶ small connection ─▶ ┌────────────┐
//!   │ coordinator   │ ◀────────────── replies          │ replica    │
//!   │   send ───▶ Link ─ requests ─▶ bulk connection ─▶│            │
//!   │               │ ◀────────────── replies          └────────────┘
//!   │   replica     │ ◀──────── requests ── connections that loops of B, C … have dialed
//!   │   respond ──▶ │ replies ──────────────▶
//!   └───────────────┘
//! ```
//!
//! Each loop dials its own connections, and serves the connections that it accepted, so no message
//! crosses threads. One loop of the process keeps a connection to each peer; the other loops dial
//! on demand. [`server::link`] has the state machines of links and connections. This module adds
//! sockets, clocks, tasks and memory.

mod complaints;
mod connection;
pub(crate) mod dial;
mod driver;
mod facts;
pub(crate) mod greet;
mod links;
mod lookup;
pub(crate) mod proof;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::handshake::{HandshakeRefused, PeerSeen};
use protocol::{Claim, ClusterId, ConnectionId, Event, Incarnation, Message, NodeId, Reply};
use server::link::{Direction, MAX_ACCEPTED, PING_MICROS, Pings, Redialer};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::MissedTickBehavior;

use crate::counters::Counters;
use crate::counters::clocks;
use crate::counters::memory_budget::MemoryReservation;
use crate::transport::Stream;
use connection::PeerConnection;
pub(crate) use dial::{DialError, connect};
use driver::{Driver, LinkEnd};
pub(crate) use facts::PeerFacts;
use links::DialedLink;
pub(crate) use lookup::Lookups;

/// Interval of pings on each connection.
const PING_EVERY: Duration = Duration::from_micros(PING_MICROS);

/// Time limit for sending unsent data when the node stops.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// Input from the other nodes.
#[derive(Debug)]
pub(crate) enum PeerInput {
    /// A protocol event, for the coordinator.
    Event(Event),
    /// A connection was established, by either side, and the other node is authenticated.
    PeerSeen {
        /// The node at the other end.
        peer: NodeId,
        /// Incarnation of the other node's data directory.
        incarnation: Incarnation,
        /// The other node's knowledge of this node's data directory; `None` if it has none.
        knows_us: Option<Claim>,
        /// True if the other node has never known another data directory of this node.
        knew_only_this_disk: bool,
        /// The other node's cluster; `None` if it has no cluster yet.
        cluster: Option<ClusterId>,
    },
    /// Another node has a later layout than this node.
    Later,
    /// This node is fenced.
    Fenced,
}

/// The receiver of the input from all connections.
pub(crate) type EventSink = Rc<dyn Fn(PeerInput)>;

/// One loop's connections to and from the other nodes. All clones are the same connections.
#[derive(Clone)]
pub(crate) struct PeerConnections {
    inner: Rc<Inner>,
}

struct Inner {
    facts: Arc<PeerFacts>,
    counters: Arc<Counters>,
    /// The receiver of input. `close` removes it, because the receiver owns the owner of this
    /// struct, and neither of them would ever be dropped.
    sink: RefCell<Option<EventSink>>,
    /// State of each peer, created at first use, and dropped after the peer leaves the cluster.
    entries: RefCell<BTreeMap<NodeId, Rc<PeerEntry>>>,
    accepted: RefCell<HashMap<u64, Rc<PeerConnection>>>,
    /// Memory reserved for long records in replies, by node and request.
    reply_reservations: RefCell<HashMap<(NodeId, u64), MemoryReservation>>,
    next_connection: Cell<u64>,
    /// Handshakes of incoming connections, the oldest first.
    greeting: RefCell<VecDeque<AbortHandle>>,
    /// Input queued for the sink.
    waiting: RefCell<VecDeque<PeerInput>>,
    waker: RefCell<Option<Waker>>,
    dispatching: Cell<bool>,
    leaving: Cell<bool>,
    redialer: RefCell<Redialer>,
    pings: RefCell<Pings>,
    /// Read buffer shared by all connections. One connection uses it at a time.
    scratch: RefCell<Vec<u8>>,
}

/// A loop's state for one peer.
#[derive(Default)]
struct PeerEntry {
    link: RefCell<DialedLink>,
    lookups: Lookups,
}

impl PeerConnections {
    /// Creates a set without connections. The set is not borrowed during a call of `sink`, so
    /// `sink` may send messages.
    pub(crate) fn new(facts: Arc<PeerFacts>, counters: Arc<Counters>, sink: EventSink) -> Self {
        Self {
            inner: Rc::new(Inner {
                facts,
                counters,
                sink: RefCell::new(Some(sink)),
                entries: RefCell::default(),
                accepted: RefCell::default(),
                reply_reservations: RefCell::default(),
                next_connection: Cell::new(0),
                greeting: RefCell::default(),
                waiting: RefCell::default(),
                waker: RefCell::default(),
                dispatching: Cell::new(false),
                leaving: Cell::new(false),
                redialer: RefCell::default(),
                pings: RefCell::default(),
                scratch: RefCell::default(),
            }),
        }
    }

    /// Runs the periodic work and the delayed dispatch, as a task of the loop. Never ends.
    pub(crate) async fn run(&self) {
        let mut ping = tokio::time::interval(PING_EVERY);
        // After a pause, the node reads the answers that have arrived before it counts further
        // pings as missed.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.wait_for_input() => self.dispatch_all(),
                _ = ping.tick() => self.ping(),
            }
        }
    }

    /// Keeps a connection to each peer from now on. Only one loop of the process may call this
    /// method.
    pub(crate) fn keep_all_connected(&self) {
        self.inner.redialer.borrow_mut().begin();
    }

    /// Sends a request, and dials the peer if there is no connection. The outcome is a later event:
    /// a reply, the loss of the link, or [`Event::MessageDropped`]. No outcome is reported during
    /// this call.
    pub(crate) fn send(&self, peer: NodeId, message: Message) {
        let id = message.id;
        assert_ne!(peer, self.inner.facts.own(), "a node sends nothing to itself");
        if !links::send(self, peer, message) {
            self.queue_for_sink(PeerInput::Event(Event::MessageDropped { peer, id }));
        }
    }

    /// Sends a read. The answer is received into the reservation `room`, whose size limits the
    /// answer. A long record without a reservation is discarded as it arrives.
    pub(crate) fn fetch(&self, peer: NodeId, message: Message, room: MemoryReservation) {
        self.inner.reply_reservations.borrow_mut().insert((peer, message.id), room);
        self.send(peer, message);
    }

    /// Withdraws the reservation of a fetch; `None` if the answer has used it already.
    pub(crate) fn take_reservation(&self, peer: NodeId, id: u64) -> Option<MemoryReservation> {
        let mut reply_reservations = self.inner.reply_reservations.borrow_mut();
        // In nearly all calls there is no reservation.
        if reply_reservations.is_empty() { None } else { reply_reservations.remove(&(peer, id)) }
    }

    /// Replies to a request, if the connection of the request is still open.
    pub(crate) fn respond(&self, connection: ConnectionId, id: u64, reply: Reply) {
        let connection = self.inner.accepted.borrow().get(&connection.0).map(Rc::clone);
        if let Some(connection) = connection {
            connection.respond(id, reply);
        }
    }

    /// Opens a connection to a node for something other than protocol messages. The node is not
    /// authenticated.
    pub(crate) async fn connect_to(&self, peer: NodeId) -> Result<Stream, DialError> {
        let left = || io::Error::other("it has left the cluster");
        let entry = self.entry(peer).ok_or_else(left)?;
        connect(&self.inner.facts.url(peer), &entry.lookups).await
    }

    /// Takes over a connection that was upgraded to the peer protocol (status 101). `read` is input
    /// received after the upgrade request.
    pub(crate) fn upgrade(&self, stream: Stream, read: Bytes) {
        greet::start(self, stream, read);
    }

    /// Returns true if a connection to another node is open.
    pub(crate) fn is_connected(&self) -> bool {
        !self.connections().is_empty()
    }

    /// Announces to the other nodes that this node is about to stop, and accepts no more requests.
    /// Requests received earlier are answered.
    pub(crate) fn goodbye(&self) {
        self.inner.leaving.set(true);
        for connection in self.inner.accepted.borrow().values() {
            connection.goodbye();
        }
    }

    /// Closes all connections after their unsent data is sent, or after `CLOSE_TIMEOUT`. The sink
    /// receives no more input.
    pub(crate) async fn close(&self) {
        self.inner.leaving.set(true);
        self.inner.sink.borrow_mut().take();
        let connections = self.connections();
        connections.iter().for_each(|connection| connection.finish());
        let begun = Instant::now();
        while !self.connections().is_empty() && begun.elapsed() < CLOSE_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for greeting in self.inner.greeting.borrow_mut().drain(..) {
            greeting.abort();
        }
        for connection in connections {
            connection.close("this node is shutting down");
        }
    }

    /// Returns the state of a peer; `None` if the peer has left the cluster.
    fn entry(&self, peer: NodeId) -> Option<Rc<PeerEntry>> {
        if let Some(entry) = self.inner.entries.borrow().get(&peer) {
            return Some(Rc::clone(entry));
        }
        let is_known = self.inner.facts.table.has(peer);
        is_known.then(|| Rc::clone(self.inner.entries.borrow_mut().entry(peer).or_default()))
    }

    /// Returns all open connections, dialed and accepted.
    fn connections(&self) -> Vec<Rc<PeerConnection>> {
        let accepted = self.inner.accepted.borrow();
        let mut connections: Vec<_> = accepted.values().cloned().collect();
        for entry in self.inner.entries.borrow().values() {
            connections.extend(entry.link.borrow().connections().cloned());
        }
        connections
    }

    fn ping(&self) {
        let facts = &self.inner.facts;
        facts.table.share_bytes();
        links::close_links_of_leavers(self);
        links::close_links_to_other_clusters(self);
        let round = self.inner.pings.borrow_mut().next_round(facts.table.nodes());
        for connection in self.connections() {
            connection.ping(round);
        }
        if !self.inner.leaving.get() {
            let due = self.inner.redialer.borrow_mut().due(&facts.table, clocks::mono_micros());
            for peer in due {
                links::dial_if_down(self, peer);
            }
        }
    }

    /// Serves a connection that an authenticated node has dialed to this node.
    fn accept(&self, stream: Stream, seen: PeerSeen, rest: Vec<u8>) {
        let mut accepted = self.inner.accepted.borrow_mut();
        if accepted.len() >= MAX_ACCEPTED || self.inner.leaving.get() {
            return;
        }
        let id = self.inner.next_connection.get();
        self.inner.next_connection.set(id + 1);
        let (facts, counters) = (&self.inner.facts, &self.inner.counters);
        let connection =
            PeerConnection::new(facts, counters, &seen, Direction::Accepted(ConnectionId(id)));
        accepted.insert(id, Rc::clone(&connection));
        drop(accepted);
        self.dispatch_seen(seen);
        facts.observations(seen.node).note_dialed();
        let this = self.clone();
        spawn_local(async move {
            let end = Driver::new(stream, Rc::clone(&connection), rest).run(&this).await;
            this.inner.accepted.borrow_mut().remove(&id);
            this.note_end(&connection, &end);
        });
    }

    fn dispatch_seen(&self, seen: PeerSeen) {
        self.inner.facts.table.record_handshake(&seen);
        let PeerSeen { node: peer, incarnation, knows_us, knew_only_this_disk, cluster, .. } = seen;
        let seen =
            PeerInput::PeerSeen { peer, incarnation, knows_us, knew_only_this_disk, cluster };
        self.dispatch(seen);
    }

    fn note_refusal(&self, peer: Option<NodeId>, refused: &HandshakeRefused) {
        if self.inner.facts.is_fenced_by(peer, refused) {
            self.dispatch(PeerInput::Fenced);
        }
    }

    fn note_end(&self, connection: &PeerConnection, end: &LinkEnd) {
        let (facts, peer) = (&self.inner.facts, connection.peer);
        if let LinkEnd::Malformed(malformed) = end {
            self.inner.counters.peers.malformed.add(1);
            facts.complaints.log_unless_recent(peer, "malformed", || {
                let name = facts.name(peer);
                tracing::warn!(peer = name, "closed a peer's connection: received {malformed}");
            });
        }
    }

    /// Passes input to the sink, after the queued input. The caller must not hold a borrow of this
    /// state.
    fn dispatch(&self, what: PeerInput) {
        let inner = &self.inner;
        if inner.dispatching.get() || !inner.waiting.borrow().is_empty() {
            inner.waiting.borrow_mut().push_back(what);
        } else {
            inner.dispatching.set(true);
            self.pass_to_sink(what);
            inner.dispatching.set(false);
        }
        self.dispatch_all();
    }

    fn pass_to_sink(&self, what: PeerInput) {
        let sink = self.inner.sink.borrow().clone();
        if let Some(sink) = sink {
            sink(what);
        }
    }

    /// Queues input for the sink; `run` passes it on soon. The caller may hold a borrow of this
    /// state.
    fn queue_for_sink(&self, what: PeerInput) {
        self.inner.waiting.borrow_mut().push_back(what);
        if let Some(waker) = self.inner.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn dispatch_all(&self) {
        if self.inner.dispatching.replace(true) {
            return;
        }
        loop {
            let Some(what) = self.inner.waiting.borrow_mut().pop_front() else { break };
            self.pass_to_sink(what);
        }
        self.inner.dispatching.set(false);
    }

    async fn wait_for_input(&self) {
        poll_fn(|cx| {
            if !self.inner.waiting.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.inner.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
