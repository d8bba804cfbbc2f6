//! The other nodes, as one event loop reaches them and is reached by them.
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
//! Each loop dials its own connections and serves those that it accepted, so that nothing crosses
//! from one thread to another. One of them keeps a connection to each peer; the others dial when
//! something is asked. What a link and a connection *are* is in [`node::link`]; this brings the
//! sockets, the clocks, the tasks and the memory.

mod complaints;
mod connection;
mod dial;
mod driver;
mod facts;
mod greet;
pub(crate) mod join;
mod links;
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
use cluster::handshake::{HandshakeRefused, PeerSeen};
use cluster::{Claim, ClusterId, ConnectionId, Event, Incarnation, Message, NodeId, Reply};
use node::link::{Keeper, MAX_ACCEPTED, PING_MICROS, Pings, Way};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::MissedTickBehavior;

use crate::counters::Counters;
use crate::counters::budget::Held;
use crate::counters::clocks;
use crate::transport::Stream;
use connection::PeerConnection;
pub(crate) use dial::{DialError, Lookup, connect};
use driver::{Driver, End};
pub(crate) use facts::Facts;
use links::Link;

/// How often a sign of life is asked for on every connection that was dialed.
const PING_EVERY: Duration = Duration::from_micros(PING_MICROS);

/// How long the node waits, when it stops, for what is still to be sent.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// What comes from the other nodes.
#[derive(Debug)]
pub(crate) enum FromPeers {
    /// For the coordinator.
    Event(Event),
    /// A connection was made, by either side, and the other one has proved who it is.
    PeerSeen {
        /// The node at the other end.
        peer: NodeId,
        /// Its incarnation: which disk it has.
        incarnation: Incarnation,
        /// What it knew of this node's disk.
        knows_us: Option<Claim>,
        /// Whether that is the only disk of this node that it ever knew.
        never_another: bool,
        /// The cluster that it belongs to; `None` = none yet.
        cluster: Option<ClusterId>,
    },
    /// Another node goes by a later layout than this one.
    Later,
    /// This node is fenced.
    Fenced,
}

/// Takes what comes over the connections.
pub(crate) type Sink = Rc<dyn Fn(FromPeers)>;

/// One loop's connections to and from the other nodes. Clones are the same one.
#[derive(Clone)]
pub(crate) struct PeerConnections {
    inner: Rc<Inner>,
}

struct Inner {
    facts: Arc<Facts>,
    counters: Arc<Counters>,
    /// Taken away at the end, for it holds whoever holds this.
    sink: RefCell<Option<Sink>>,
    /// What there is for each peer, made when it is first needed, until it leaves the cluster.
    places: RefCell<BTreeMap<NodeId, Rc<PeerPlace>>>,
    accepted: RefCell<HashMap<u64, Rc<PeerConnection>>>,
    /// Room for long records that were asked for, by node and request.
    fetching: RefCell<HashMap<(NodeId, u64), Held>>,
    next_connection: Cell<u64>,
    /// Handshakes with whoever connected, the oldest first.
    greeting: RefCell<VecDeque<AbortHandle>>,
    /// Events that wait for the sink.
    waiting: RefCell<VecDeque<FromPeers>>,
    waker: RefCell<Option<Waker>>,
    dispatching: Cell<bool>,
    leaving: Cell<bool>,
    keeper: RefCell<Keeper>,
    pings: RefCell<Pings>,
    /// Where connections read into, one at a time.
    scratch: RefCell<Vec<u8>>,
}

/// What a loop has for one peer.
#[derive(Default)]
struct PeerPlace {
    link: RefCell<Link>,
    /// Its name being looked up.
    lookup: RefCell<Option<Lookup>>,
}

impl PeerConnections {
    /// No connections yet. `sink` is called with nothing borrowed, and may send and respond.
    pub(crate) fn new(facts: Arc<Facts>, counters: Arc<Counters>, sink: Sink) -> Self {
        Self {
            inner: Rc::new(Inner {
                facts,
                counters,
                sink: RefCell::new(Some(sink)),
                places: RefCell::default(),
                accepted: RefCell::default(),
                fetching: RefCell::default(),
                next_connection: Cell::new(0),
                greeting: RefCell::default(),
                waiting: RefCell::default(),
                waker: RefCell::default(),
                dispatching: Cell::new(false),
                leaving: Cell::new(false),
                keeper: RefCell::default(),
                pings: RefCell::default(),
                scratch: RefCell::default(),
            }),
        }
    }

    /// Does what must be done now and then. A task of the loop; never ends.
    pub(crate) async fn run(&self) {
        let mut ping = tokio::time::interval(PING_EVERY);
        // After a pause, the others' words are read before they are missed again.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.waiting() => self.dispatch_all(),
                _ = ping.tick() => self.ping(),
            }
        }
    }

    /// From now on, keeps a connection to each peer. For one loop of the process.
    pub(crate) fn keep_all(&self) {
        self.inner.keeper.borrow_mut().begin();
    }

    /// Sends a request, over a connection that is made if there is none. What becomes of it comes
    /// as an event, never during this call: a reply, or the loss of the link, or
    /// [`Event::Overflow`].
    pub(crate) fn send(&self, peer: NodeId, message: Message) {
        let id = message.id;
        assert_ne!(peer, self.inner.facts.own(), "a node sends nothing to itself");
        if !links::send(self, peer, message) {
            self.dispatch_later(FromPeers::Event(Event::Overflow { peer, id }));
        }
    }

    /// Sends a read whose answer may have as many bytes as `room`, which is where it goes. A long
    /// record for which there is no room here, or not any more, is thrown away as it comes.
    pub(crate) fn fetch(&self, peer: NodeId, message: Message, room: Held) {
        self.inner.fetching.borrow_mut().insert((peer, message.id), room);
        self.send(peer, message);
    }

    /// Takes the room that was set aside for a fetch, if it did not get there yet.
    pub(crate) fn take_room(&self, peer: NodeId, id: u64) -> Option<Held> {
        let mut fetching = self.inner.fetching.borrow_mut();
        // Nearly always there is none.
        if fetching.is_empty() { None } else { fetching.remove(&(peer, id)) }
    }

    /// Replies to a request, if the connection that it came on is still open.
    pub(crate) fn respond(&self, connection: ConnectionId, id: u64, reply: Reply) {
        let connection = self.inner.accepted.borrow().get(&connection.0).map(Rc::clone);
        if let Some(connection) = connection {
            connection.respond(id, reply);
        }
    }

    /// Connects to a node for something other than messages. The other end proves nothing.
    pub(crate) async fn reach(&self, peer: NodeId) -> Result<Stream, DialError> {
        let left = || io::Error::other("it has left the cluster");
        let place = self.place(peer).ok_or_else(left)?;
        connect(&self.inner.facts.url(peer), &place.lookup).await
    }

    /// Takes over a connection on which somebody asked to speak as a peer and was told 101.
    /// `read` is what came behind the request.
    pub(crate) fn upgrade(&self, stream: Stream, read: Bytes) {
        greet::start(self, stream, read);
    }

    /// Says to the others that this node is about to stop and wants no more requests. Those that
    /// came are answered.
    pub(crate) fn goodbye(&self) {
        self.inner.leaving.set(true);
        for connection in self.inner.accepted.borrow().values() {
            connection.goodbye();
        }
    }

    /// Closes all connections once what is to be sent is sent, or that took too long. The sink gets
    /// no more events.
    pub(crate) async fn close(&self) {
        self.inner.leaving.set(true);
        self.inner.sink.borrow_mut().take();
        let connections = self.connections();
        connections.iter().for_each(|connection| connection.finish());
        let begun = Instant::now();
        while !self.connections().is_empty() && begun.elapsed() < LAST_WORDS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for greeting in self.inner.greeting.borrow_mut().drain(..) {
            greeting.abort();
        }
        for connection in connections {
            connection.close("this node is shutting down");
        }
    }

    /// What there is for a peer; `None` = it has left the cluster.
    fn place(&self, peer: NodeId) -> Option<Rc<PeerPlace>> {
        if let Some(place) = self.inner.places.borrow().get(&peer) {
            return Some(Rc::clone(place));
        }
        let is_known = self.inner.facts.table.has(peer);
        is_known.then(|| Rc::clone(self.inner.places.borrow_mut().entry(peer).or_default()))
    }

    /// All open connections, whoever made them.
    fn connections(&self) -> Vec<Rc<PeerConnection>> {
        let accepted = self.inner.accepted.borrow();
        let mut connections: Vec<_> = accepted.values().cloned().collect();
        for place in self.inner.places.borrow().values() {
            connections.extend(place.link.borrow().connections().cloned());
        }
        connections
    }

    fn ping(&self) {
        let facts = &self.inner.facts;
        facts.table.share_bytes();
        links::end_those_of_leavers(self);
        links::end_those_to_other_clusters(self);
        let round = self.inner.pings.borrow_mut().next_round(facts.table.nodes());
        for connection in self.connections() {
            connection.ping(round);
        }
        if !self.inner.leaving.get() {
            let due = self.inner.keeper.borrow_mut().due(&facts.table, clocks::mono_micros());
            for peer in due {
                links::raise(self, peer);
            }
        }
    }

    /// Serves a connection that another node has dialed and proved its right to.
    fn accept(&self, stream: Stream, seen: PeerSeen, rest: Vec<u8>) {
        let mut accepted = self.inner.accepted.borrow_mut();
        if accepted.len() >= MAX_ACCEPTED || self.inner.leaving.get() {
            return;
        }
        let id = self.inner.next_connection.get();
        self.inner.next_connection.set(id + 1);
        let (facts, counters) = (&self.inner.facts, &self.inner.counters);
        let connection =
            PeerConnection::new(facts, counters, &seen, Way::Accepted(ConnectionId(id)));
        accepted.insert(id, Rc::clone(&connection));
        drop(accepted);
        self.dispatch_seen(seen);
        facts.seen(seen.node).knock();
        let this = self.clone();
        spawn_local(async move {
            let end = Driver::new(stream, Rc::clone(&connection), rest).run(&this).await;
            this.inner.accepted.borrow_mut().remove(&id);
            this.note_end(&connection, &end);
        });
    }

    fn dispatch_seen(&self, seen: PeerSeen) {
        self.inner.facts.table.saw(&seen);
        let PeerSeen { node: peer, incarnation, knows_us, never_another, cluster, .. } = seen;
        let seen = FromPeers::PeerSeen { peer, incarnation, knows_us, never_another, cluster };
        self.dispatch(seen);
    }

    fn note_refusal(&self, peer: Option<NodeId>, refused: &HandshakeRefused) {
        if self.inner.facts.is_fenced_by(peer, refused) {
            self.dispatch(FromPeers::Fenced);
        }
    }

    fn note_end(&self, connection: &PeerConnection, end: &End) {
        let (facts, peer) = (&self.inner.facts, connection.peer);
        if let End::Malformed(malformed) = end {
            self.inner.counters.peers.malformed.add(1);
            facts.complaints.about(peer, "malformed", || {
                let name = facts.name(peer);
                tracing::warn!(peer = name, "closed a peer's connection: received {malformed}");
            });
        }
    }

    /// Hands an event to the sink, after those that wait already. Must not be called with anything
    /// borrowed.
    fn dispatch(&self, what: FromPeers) {
        let inner = &self.inner;
        if inner.dispatching.get() || !inner.waiting.borrow().is_empty() {
            inner.waiting.borrow_mut().push_back(what);
        } else {
            inner.dispatching.set(true);
            self.hand_over(what);
            inner.dispatching.set(false);
        }
        self.dispatch_all();
    }

    fn hand_over(&self, what: FromPeers) {
        let sink = self.inner.sink.borrow().clone();
        if let Some(sink) = sink {
            sink(what);
        }
    }

    /// Hands an event to the sink soon: the caller may be in the middle of something.
    fn dispatch_later(&self, what: FromPeers) {
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
            self.hand_over(what);
        }
        self.inner.dispatching.set(false);
    }

    async fn waiting(&self) {
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
