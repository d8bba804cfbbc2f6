//! A test harness of nodes that have only peer connections. All nodes run in one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use lsm::Fields;
use protocol::handshake::{ConnectionKind, Handshake, HandshakeIdentity, Secret, Secrets};
use protocol::{
    Body, Class, Clock, ClusterId, ConnectionId, Event, Incarnation, Kind, Logs, Member,
    Membership, MembershipState, Message, NodeId, OwnCluster, Record, Reply, Request, Shared,
    Topology, Version,
};
use server::link::{LinkBounds, PeerTable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::counters::clocks::wall_micros;
use crate::counters::memory_budget::Budget;
use crate::counters::{Counters, PeerCounts};
use crate::peers::greet::run_handshake;
use crate::peers::{PeerConnections, PeerFacts, PeerInput};
use crate::transport::Stream;

/// Time limit of each test, and of each wait in a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const A: NodeId = NodeId(0);
pub(super) const B: NodeId = NodeId(1);

/// Limit on the encoded messages that wait on a connection, in bytes.
pub(super) const CONNECTION_BYTES: usize = 1 << 20;

/// Limit on all waiting messages, in bytes.
pub(super) const QUEUE_BYTES: usize = 8 << 20;

/// A node's memory for long messages, in bytes.
pub(super) const ROOM_BYTES: usize = 1 << 20;

pub(super) const CLUSTER: ClusterId = ClusterId(5);

/// Runs a test on a new event loop.
pub(super) fn run(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async { timeout(TEST_TIMEOUT, test).await.expect("the test hangs") });
}

/// The nodes' names, in the order of their ids.
const NAMES: [&str; 2] = ["a", "b"];

pub(super) fn topology(replicas: u8) -> Topology {
    /// Built once, because the placement of all keys takes milliseconds.
    static USUAL: LazyLock<Topology> = LazyLock::new(|| make(3));
    fn make(replicas: u8) -> Topology {
        let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
        Topology::new(NAMES.map(member).into(), replicas).unwrap()
    }
    if replicas == 3 { USUAL.clone() } else { make(replicas) }
}

/// Options of a node.
pub(super) struct Setup {
    pub(super) secret: &'static str,
    pub(super) replicas: u8,
    pub(super) clock_ahead: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { secret: "open sesame", replicas: 3, clock_ahead: 0 }
    }
}

/// Binds a free port, which refuses connections until a node listens on it.
pub(super) fn port() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

pub(super) fn url(listener: &std::net::TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

/// The input that a node's sink received.
#[derive(Default)]
struct Inbox {
    events: RefCell<VecDeque<PeerInput>>,
    came: Notify,
}

pub(super) struct Node {
    pub(super) peers: PeerConnections,
    pub(super) facts: Arc<PeerFacts>,
    pub(super) counters: Arc<Counters>,
    inbox: Rc<Inbox>,
    /// Number of requests that were answered immediately.
    pub(super) served: Rc<Cell<u64>>,
}

impl Node {
    /// Starts node `own` of `urls`. A request is answered immediately if `answer` returns a reply.
    pub(super) fn start(
        own: NodeId,
        urls: &[String],
        setup: &Setup,
        answer: impl Fn(&Request) -> Option<Reply> + 'static,
    ) -> Self {
        let topology = topology(setup.replicas);
        let wall = wall_micros() + setup.clock_ahead;
        let clock = Arc::new(Clock::start(own.0.into(), wall, 0));
        let logs = Arc::new(Logs::first(Incarnation(100 + u64::from(own.0))));
        let membership = Membership::new(MembershipState::Member, 0, true);
        let shared = Shared::new(topology, own, clock, membership, 0, Arc::clone(&logs));
        let shared = Arc::new(shared);
        let secret = Arc::new(Secrets::new(Secret::new(setup.secret.into()), None));
        let known =
            (logs, Arc::clone(&shared.repair.proofs), Arc::clone(&shared.membership.layouts));
        let views = Arc::clone(&shared.membership.views);
        let cluster = Arc::new(OwnCluster::new(Some(CLUSTER)));
        let identity = HandshakeIdentity::new(views, own, cluster, secret, known);
        let bounds =
            LinkBounds { encoded_bytes: 4 * CONNECTION_BYTES, loops: 1, queue_bytes: QUEUE_BYTES };
        let table = PeerTable::new(shared, Arc::new(identity), 500_000, bounds);
        let names = NAMES.iter().map(|name| (*name).to_owned());
        let listed = names.zip(urls.iter().cloned()).collect();
        let facts = Arc::new(PeerFacts::new(table, Budget::new(ROOM_BYTES), listed));
        let (inbox, served) = (Rc::new(Inbox::default()), Rc::new(Cell::new(0)));
        let counters = Arc::<Counters>::default();
        let late = Rc::new(RefCell::new(None::<PeerConnections>));
        let (sink, own_peers, count) = (Rc::clone(&inbox), Rc::clone(&late), Rc::clone(&served));
        let peers = PeerConnections::new(
            Arc::clone(&facts),
            Arc::clone(&counters),
            Rc::new(move |what| {
                if let PeerInput::Event(Event::Request { connection, id, request, .. }) = &what
                    && let Some(reply) = answer(request)
                {
                    count.set(count.get() + 1);
                    let peers = own_peers.borrow().clone().unwrap();
                    return peers.respond(*connection, *id, reply);
                }
                sink.events.borrow_mut().push_back(what);
                sink.came.notify_one();
            }),
        );
        *late.borrow_mut() = Some(peers.clone());
        let running = peers.clone();
        tokio::task::spawn_local(async move { running.run().await });
        Self { peers, facts, counters, inbox, served }
    }

    /// Accepts connections like the HTTP server.
    pub(super) fn listen(&self, listener: std::net::TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let peers = self.peers.clone();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let peers = peers.clone();
                tokio::task::spawn_local(async move {
                    let (stream, rest) = answer_101(stream).await;
                    peers.upgrade(stream, rest);
                });
            }
        });
    }

    /// Waits for the next input of the sink.
    pub(super) async fn next(&self) -> PeerInput {
        loop {
            if let Some(what) = self.inbox.events.borrow_mut().pop_front() {
                return what;
            }
            self.inbox.came.notified().await;
        }
    }

    /// Waits for the next event. Skips other input.
    pub(super) async fn event(&self) -> Event {
        loop {
            if let PeerInput::Event(event) = self.next().await {
                return event;
            }
        }
    }

    /// Returns the next input if it has arrived already and is an event.
    pub(super) fn try_event(&self) -> Option<Event> {
        match self.inbox.events.borrow_mut().pop_front()? {
            PeerInput::Event(event) => Some(event),
            PeerInput::PeerSeen { .. } | PeerInput::Later | PeerInput::Fenced => None,
        }
    }

    /// Waits for the next request that was not answered immediately.
    pub(super) async fn request(&self) -> (ConnectionId, u64, Request) {
        match self.event().await {
            Event::Request { connection, id, request, .. } => (connection, id, request),
            other => panic!("{other:?} instead of a request"),
        }
    }

    /// Waits for the next reply.
    pub(super) async fn reply(&self) -> (u64, Reply) {
        match self.event().await {
            Event::Reply { id, reply, .. } => (id, reply),
            other => panic!("{other:?} instead of a reply"),
        }
    }

    /// Fetches a record with a reservation of `bytes`.
    pub(super) fn fetch(&self, peer: NodeId, id: u64, bytes: usize) {
        let room = Budget::new(bytes).take(bytes).unwrap();
        self.peers.fetch(peer, read(id), room);
    }

    pub(super) fn counts(&self) -> &PeerCounts {
        &self.counters.peers
    }

    /// Connects to `peer`, and waits for the answer to a first request.
    pub(super) async fn connect(&self, peer: NodeId) {
        self.peers.send(peer, request(0, Request::Ping));
        assert!(matches!(self.event().await, Event::LinkUp(up) if up == peer));
        assert_eq!(self.reply().await, (0, Reply::Pong));
    }
}

/// Waits until a condition is true, while the event loop runs.
pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = timeout(TEST_TIMEOUT / 2, async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Returns a connection to `address` on which node `own` is authenticated.
pub(super) async fn connect_authenticated(own: &Node, address: SocketAddr) -> Stream {
    let mut stream = Stream::from(TcpStream::connect(address).await.unwrap());
    stream.write_all(b"GET /v0/peer HTTP/1.1\r\nUpgrade: kvorum-peer/1\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    let mut hello = Vec::new();
    let identity = Arc::clone(&own.facts.table.identity);
    let handshake = Handshake::dial(identity, B, ConnectionKind::Small, [4; 32], &mut hello);
    let (_, rest) = run_handshake(&mut stream, handshake, hello, Vec::new()).await.unwrap();
    assert!(rest.is_empty());
    stream
}

/// Returns a reply to pings, and `None` for other requests.
pub(super) fn only_pings(request: &Request) -> Option<Reply> {
    matches!(request, Request::Ping).then_some(Reply::Pong)
}

/// Starts two nodes that listen. `answer` returns their immediate replies.
pub(super) async fn pair(
    answer: impl Fn(&Request) -> Option<Reply> + Clone + 'static,
) -> (Node, Node) {
    let (ports, urls) = ports();
    let a = Node::start(A, &urls, &Setup::default(), answer.clone());
    let b = Node::start(B, &urls, &Setup::default(), answer);
    let [port_a, port_b] = ports;
    a.listen(port_a);
    b.listen(port_b);
    (a, b)
}

pub(super) fn ports() -> ([std::net::TcpListener; 2], Vec<String>) {
    let ports = [port(), port()];
    let urls = ports.iter().map(url).collect();
    (ports, urls)
}

/// Reads an HTTP upgrade request, and accepts it.
pub(super) async fn answer_101(mut stream: TcpStream) -> (Stream, Bytes) {
    let mut head = Vec::new();
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0, "closed in its head");
    }
    let text = String::from_utf8(head).unwrap();
    assert!(text.starts_with("GET /v0/peer HTTP/1.1\r\n"), "{text}");
    assert!(text.contains("\r\nUpgrade: kvorum-peer/1\r\n"), "{text}");
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n";
    stream.write_all(answer).await.unwrap();
    stream.set_nodelay(true).unwrap();
    (stream.into(), Bytes::new())
}

pub(super) fn request(id: u64, request: Request) -> Message {
    Message { id, body: Body::Request { remaining_ms: 1000, class: Class::Client, request } }
}

pub(super) fn read(id: u64) -> Message {
    request(id, Request::Read { key: Bytes::from(id.to_string()), most: u32::MAX })
}

/// Returns a write whose record has about `bytes` bytes.
pub(super) fn write(id: u64, bytes: usize) -> Message {
    let key = Bytes::from(id.to_string());
    request(id, Request::Write { key, record: record(id, bytes) })
}

/// Returns a record of `bytes` + 8 bytes, at least the minimum size of a record.
pub(super) fn record(time: u64, bytes: usize) -> Record {
    let value: Vec<_> = (16..bytes).map(|at| (at % 251) as u8).collect();
    let version = Version { time, origin: 0 };
    Record::new(b"k", &Fields::new(Kind::Value, version), &value)
}
