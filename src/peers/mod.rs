//! The other nodes, as one event loop reaches them and is reached by them.
//!
//! ```text
//!   this loop                                           a loop of peer B
//!   ┌───────────────┐  requests ──▶ small lane ──────▶ ┌────────────┐
//!   │ coordinator   │ ◀────────────── replies          │ replica    │
//!   │   send ───▶ Line ─ requests ─▶ bulk lane ───────▶│            │
//!   │               │ ◀────────────── replies          └────────────┘
//!   │   replica     │ ◀──────── requests ── lanes that loops of B, C … have dialed
//!   │   respond ──▶ │ replies ──────────────▶
//!   └───────────────┘
//! ```
//!
//! Each loop dials its own connections and serves those that it accepted, so that nothing crosses
//! from one thread to another. One of them keeps a connection to each peer (`keep`); the others
//! dial when something is asked. A *line* is what leads to one peer: a small lane, and a bulk lane
//! that is dialed when something long is sent. It stands or falls as a whole: whichever lane is
//! lost, both are closed, and there is one [`Event::Lost`] for all that was not answered.

mod complaints;
mod dial;
mod driver;
mod facts;
mod greet;
mod keep;
mod lane;
mod line;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::handshake::{Met, Refused};
use cluster::{Body, Claim, Event, LaneId, Message, NodeId, Reply};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::MissedTickBehavior;

use crate::counters::Counters;
use crate::node::budget::Held;
pub(crate) use dial::{DialError, Lookup, connect};
use driver::{Driver, End};
pub(crate) use facts::{Facts, Room};
use keep::Keeper;
use lane::Lane;
use line::Line;

/// How often a sign of life is asked for on every lane that was dialed. One that brought nothing
/// between three of them, so that two were missed, is closed.
const BEAT: Duration = Duration::from_millis(500);

/// Peers for each beat that an idle lane leaves out: in a large cluster most lanes are idle, and
/// each
/// of them beating twice a second would be most of what a node does. Up to so many peers an idle
/// one beats each time; a lane on which something was sent always does, until that is answered.
const PEERS_PER_SKIP: usize = 64;

/// An accepted lane on which nothing came for so many beats is closed. The dialer has given it up
/// long before, unless the connection was cut without a word.
const SILENT_BEATS: u32 = 8;

/// Lanes that one loop accepts at most: two from each loop of each peer, with room for those of a
/// peer's former life that nobody closed.
const MAX_ACCEPTED: usize = 4096;

/// How long what was still to be said is waited for when the node stops.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// What comes from the other nodes.
#[derive(Debug)]
pub(crate) enum FromPeers {
    /// For the coordinator.
    Event(Event),
    /// A connection was made, by either side, and the other one has proved who it is.
    Met {
        /// Who.
        peer: NodeId,
        /// Since when it has its disk.
        incarnation: u64,
        /// What it knew of this node's disk.
        knows_us: Option<Claim>,
    },
    /// This node is fenced.
    Fenced,
}

/// Who is told what comes.
pub(crate) type Sink = Rc<dyn Fn(FromPeers)>;

/// One loop's connections to and from the other nodes. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Peers {
    inner: Rc<Inner>,
}

struct Inner {
    facts: Arc<Facts>,
    counters: Arc<Counters>,
    /// Taken away at the end, for it holds whoever holds this.
    sink: RefCell<Option<Sink>>,
    lines: Vec<RefCell<Line>>,
    /// Names of peers being looked up, by node.
    lookups: Vec<RefCell<Option<Lookup>>>,
    accepted: RefCell<HashMap<u64, Rc<Lane>>>,
    /// Room for long records that were asked for, by node and request.
    fetching: RefCell<HashMap<(NodeId, u64), Held>>,
    next_lane: Cell<u64>,
    /// Handshakes with whoever connected, the oldest first.
    greeting: RefCell<VecDeque<AbortHandle>>,
    /// What the sink is yet to be told.
    told: RefCell<VecDeque<FromPeers>>,
    teller: RefCell<Option<Waker>>,
    telling: Cell<bool>,
    leaving: Cell<bool>,
    keeper: Keeper,
    beats: Cell<u64>,
    /// Where lanes read into, one at a time.
    scratch: RefCell<Vec<u8>>,
    began: Instant,
}

impl Peers {
    /// No connections yet. `sink` is called with nothing borrowed, and may send and respond.
    pub(crate) fn new(facts: Arc<Facts>, counters: Arc<Counters>, sink: Sink) -> Self {
        let lines = (0..facts.nodes()).map(|_| RefCell::default()).collect();
        let lookups = (0..facts.nodes()).map(|_| RefCell::default()).collect();
        Self {
            inner: Rc::new(Inner {
                facts,
                counters,
                sink: RefCell::new(Some(sink)),
                lines,
                lookups,
                accepted: RefCell::default(),
                fetching: RefCell::default(),
                next_lane: Cell::new(0),
                greeting: RefCell::default(),
                told: RefCell::default(),
                teller: RefCell::default(),
                telling: Cell::new(false),
                leaving: Cell::new(false),
                keeper: Keeper::default(),
                beats: Cell::new(0),
                scratch: RefCell::default(),
                began: Instant::now(),
            }),
        }
    }

    /// Does what must be done now and then. A task of the loop; never ends.
    pub(crate) async fn run(&self) {
        let mut beat = tokio::time::interval(BEAT);
        // After a pause, the others' words are read before they are missed again.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.untold() => self.tell_all(),
                _ = beat.tick() => self.beat(),
            }
        }
    }

    /// From now on, keeps a connection to each peer. For one loop of the process.
    pub(crate) fn keep_all(&self) {
        self.inner.keeper.begin(self.inner.facts.nodes());
    }

    /// Sends a request, over a connection that is made if there is none. What becomes of it comes
    /// as an event, never during this call: a reply, or the loss of the line, or
    /// [`Event::Overflow`].
    pub(crate) fn send(&self, peer: NodeId, message: Message) {
        let id = message.id;
        assert_ne!(peer, self.inner.facts.own(), "a node sends nothing to itself");
        if !line::send(self, peer, message) {
            self.tell_later(FromPeers::Event(Event::Overflow { peer, id }));
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

    /// Answers a request, if the lane that it came on still stands.
    pub(crate) fn respond(&self, lane: LaneId, id: u64, reply: Reply) {
        let lane = self.inner.accepted.borrow().get(&lane.0).map(Rc::clone);
        let Some(lane) = lane else { return };
        self.respond_on(&lane, id, reply);
    }

    /// Connects to a node for something else than messages. Who is there is not proved.
    pub(crate) async fn reach(&self, peer: NodeId) -> Result<TcpStream, DialError> {
        let lookup = &self.inner.lookups[usize::from(peer.0)];
        connect(self.inner.facts.authority(peer), lookup).await
    }

    fn respond_on(&self, lane: &Lane, id: u64, reply: Reply) {
        let fits = lane.push(Message { id, body: Body::Reply(reply) });
        // It is not this node that is at its bounds, but the asker can't take it now.
        let fits = fits || lane.push(Message { id, body: Body::Reply(Reply::Busy) });
        if !fits {
            lane.close("it takes no replies");
        }
    }

    /// Takes over a connection on which somebody asked to speak as a peer and was told 101.
    /// `read` is what came behind the request.
    pub(crate) fn upgrade(&self, stream: TcpStream, read: Bytes) {
        greet::start(self, stream, read);
    }

    /// Tells the others that this node is about to stop: no more requests, please. Those that came
    /// are answered.
    pub(crate) fn goodbye(&self) {
        self.inner.leaving.set(true);
        for lane in self.inner.accepted.borrow().values() {
            lane.goodbye();
        }
    }

    /// Closes all connections, once what was to be said is said or took too long. Nothing is told
    /// any more.
    pub(crate) async fn close(&self) {
        self.inner.leaving.set(true);
        self.inner.sink.borrow_mut().take();
        let lanes = self.lanes();
        lanes.iter().for_each(|lane| lane.finish());
        let begun = Instant::now();
        while !self.lanes().is_empty() && begun.elapsed() < LAST_WORDS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for greeting in self.inner.greeting.borrow_mut().drain(..) {
            greeting.abort();
        }
        for lane in lanes {
            lane.close("this node is shutting down");
        }
    }

    fn lanes(&self) -> Vec<Rc<Lane>> {
        let mut lanes: Vec<Rc<Lane>> = self.inner.accepted.borrow().values().cloned().collect();
        for line in &self.inner.lines {
            lanes.extend(line.borrow().lanes().cloned());
        }
        lanes
    }

    fn beat(&self) {
        let token = self.inner.began.elapsed().as_micros() as u64;
        let beats = self.inner.beats.get();
        self.inner.beats.set(beats + 1);
        let skips = self.inner.facts.nodes().div_ceil(PEERS_PER_SKIP) as u64;
        for lane in self.lanes() {
            // Not all in the same beat.
            let turn = (beats + u64::from(lane.peer().0)).is_multiple_of(skips);
            lane.beat(token, turn, skips as u32);
        }
        if !self.inner.leaving.get() {
            self.inner.keeper.beat(self);
        }
    }

    /// Serves a lane that another node has dialed and proved its right to.
    fn accept(&self, stream: TcpStream, met: Met, rest: Vec<u8>) {
        let mut accepted = self.inner.accepted.borrow_mut();
        if accepted.len() >= MAX_ACCEPTED || self.inner.leaving.get() {
            return;
        }
        let id = self.inner.next_lane.get();
        self.inner.next_lane.set(id + 1);
        let lane = Lane::accepted(&self.inner.facts, &self.inner.counters, met, LaneId(id));
        accepted.insert(id, Rc::clone(&lane));
        drop(accepted);
        self.tell_met(met);
        self.inner.facts.seen(met.node).knock();
        let this = self.clone();
        spawn_local(async move {
            let end = Driver::new(stream, Rc::clone(&lane), rest).run(&this).await;
            this.inner.accepted.borrow_mut().remove(&id);
            this.note_end(&lane, &end);
        });
    }

    fn tell_met(&self, met: Met) {
        let facts = &self.inner.facts;
        let Met { node: peer, incarnation, life, knows_us, .. } = met;
        facts.seen(peer).note_incarnation(incarnation);
        facts.shared.logs.met(peer, incarnation, life);
        // At once: what it asks next must not be answered by what this node only believes to hold.
        if facts.shared.logs.lost(knows_us.as_ref()).is_some() {
            facts.shared.vouching.doubt();
        }
        self.tell(FromPeers::Met { peer, incarnation, knows_us });
    }

    fn note_refusal(&self, refused: &Refused) {
        if self.inner.facts.is_fenced_by(refused) {
            self.tell(FromPeers::Fenced);
        }
    }

    fn note_end(&self, lane: &Lane, end: &End) {
        let (facts, peer) = (&self.inner.facts, lane.peer());
        if let End::Malformed(malformed) = end {
            self.inner.counters.peers.malformed.add(1);
            facts.complaints.about(peer, "malformed", || {
                let name = facts.name(peer);
                tracing::warn!(peer = name, "closed a peer's connection: received {malformed}");
            });
        }
    }

    /// Tells the sink, after what it is to be told already. Not to be called with anything
    /// borrowed.
    fn tell(&self, what: FromPeers) {
        self.inner.told.borrow_mut().push_back(what);
        self.tell_all();
    }

    /// Tells the sink soon, for its caller may be in the middle of something.
    fn tell_later(&self, what: FromPeers) {
        self.inner.told.borrow_mut().push_back(what);
        if let Some(teller) = self.inner.teller.borrow_mut().take() {
            teller.wake();
        }
    }

    fn tell_all(&self) {
        if self.inner.telling.replace(true) {
            return;
        }
        loop {
            let Some(what) = self.inner.told.borrow_mut().pop_front() else { break };
            let sink = self.inner.sink.borrow().clone();
            if let Some(sink) = sink {
                sink(what);
            }
        }
        self.inner.telling.set(false);
    }

    async fn untold(&self) {
        poll_fn(|cx| {
            if !self.inner.told.borrow().is_empty() {
                return Poll::Ready(());
            }
            *self.inner.teller.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
