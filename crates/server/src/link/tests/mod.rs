//! Tests of the connection between two nodes. A test controls every byte and every microsecond.
#![allow(clippy::unwrap_used, reason = "whatever a test unwraps, failing there is its verdict")]

mod broken;
mod delivery;
mod handshakes;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use protocol::handshake::{
    ConnectionKind, Handshake, HandshakeIdentity, HandshakeRefused, PeerSeen, Secret, Secrets,
};
use protocol::{
    Body, Boot, BootHistory, BootId, Class, Clock, ClusterId, ConnectionId, Event, Incarnation,
    Kind, LogPosition, Logs, Member, Membership, MembershipState, Message, NodeId, Now, OwnCluster,
    Record, Reply, Request, Shared, Topology, Version,
};

use super::{
    Connection, ConnectionInput, Direction, Host, LinkBounds, MessageReservation, PeerTable,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

/// The connection that B accepts.
const CONNECTION: ConnectionId = ConnectionId(7);

const WALL: u64 = 1_700_000_000_000_000;

/// The settings of a node by which another node accepts or refuses it.
struct Setup {
    secret: &'static str,
    replicas: u8,
    cluster: ClusterId,
    incarnation: Incarnation,
    life: BootId,
}

impl Setup {
    fn of(own: NodeId) -> Self {
        let incarnation = Incarnation(100 + u64::from(own.0));
        let (cluster, life) = (ClusterId(5), BootId(40));
        Self { secret: "open sesame", replicas: 3, cluster, incarnation, life }
    }

    fn table(&self, own: NodeId) -> Arc<PeerTable> {
        let topology = topology(self.replicas);
        let life = Boot { id: self.life, begins: LogPosition(7), newest: 0 };
        let boot_history = BootHistory::new(Vec::new(), life);
        let logs = Arc::new(Logs::new(self.incarnation, boot_history, &[]));
        let clock = Arc::new(Clock::start(own.0.into(), WALL, 0));
        let membership = Membership::new(MembershipState::Member, 0, true);
        let shared = Shared::new(topology, own, clock, membership, 0, Arc::clone(&logs));
        let secret = Arc::new(Secrets::new(Secret::new(self.secret.into()), None));
        let known =
            (logs, Arc::clone(&shared.repair.proofs), Arc::clone(&shared.membership.layouts));
        let views = Arc::clone(&shared.membership.views);
        let cluster = Arc::new(OwnCluster::new(Some(self.cluster)));
        let identity = HandshakeIdentity::new(views, own, cluster, secret, known);
        let bounds = LinkBounds { encoded_bytes: 4 * 100_000, loops: 1, queue_bytes: 2 << 20 };
        Arc::new(PeerTable::new(Arc::new(shared), Arc::new(identity), 500_000, bounds))
    }
}

fn topology(replicas: u8) -> Topology {
    /// Shared, because placing all keys takes milliseconds.
    static USUAL: LazyLock<Topology> = LazyLock::new(|| make(3));
    fn make(replicas: u8) -> Topology {
        let member = |name: &str| Member { name: name.to_owned(), zone: String::new(), weight: 1 };
        Topology::new(["a", "b"].map(member).into(), replicas).unwrap()
    }
    if replicas == 3 { USUAL.clone() } else { make(replicas) }
}

/// A reservation of this many bytes.
struct Held(usize);

impl MessageReservation for Held {
    fn bytes(&self) -> usize {
        self.0
    }
}

/// A driver with a stopped clock, and with as much memory as a test allows.
struct Driver {
    now: Now,
    free: usize,
    /// Memory reserved for the next long reply, in bytes.
    reply_reservation: Option<usize>,
}

impl Driver {
    fn new() -> Self {
        let now = Now { mono: 1_000_000, wall: WALL };
        Self { now, free: usize::MAX, reply_reservation: None }
    }
}

impl Host for Driver {
    type Reservation = Held;

    fn now(&self) -> Now {
        self.now
    }

    fn reserve_for_request(&mut self, bytes: usize) -> Option<Held> {
        (bytes <= self.free).then_some(Held(bytes))
    }

    fn take_reply_reservation(&mut self, _peer: NodeId, _id: u64) -> Option<Held> {
        self.reply_reservation.take().map(Held)
    }
}

/// One end of a connection.
struct End {
    table: Arc<PeerTable>,
    connection: Connection<Held>,
    driver: Driver,
}

impl End {
    /// Creates an end; `seen_peer` is the peer seen in the handshake.
    fn new(table: &Arc<PeerTable>, seen_peer: &PeerSeen) -> Self {
        table.record_handshake(seen_peer);
        let driver = Driver::new();
        let way =
            if table.own() == A { Direction::Dialed } else { Direction::Accepted(CONNECTION) };
        let connection = Connection::new(table, seen_peer, way, driver.now);
        Self { table: Arc::clone(table), connection, driver }
    }

    fn push(&mut self, message: Message) -> bool {
        let now = self.driver.now;
        self.connection.push(message, || now)
    }

    fn respond(&mut self, id: u64, reply: Reply) {
        let now = self.driver.now;
        self.connection.respond(id, reply, || now);
    }

    /// Removes and returns all bytes that the connection has to write now.
    fn take_written(&mut self) -> Vec<u8> {
        let (now, mut all) = (self.driver.now, Vec::new());
        loop {
            let bytes = self.connection.to_send(|| now).to_vec();
            if bytes.is_empty() {
                return all;
            }
            self.connection.drop_sent(bytes.len());
            all.extend(bytes);
        }
    }

    /// Passes `bytes` to the connection, `step` bytes at a time; returns the results.
    fn take(
        &mut self,
        bytes: &[u8],
        step: usize,
    ) -> Result<Vec<ConnectionInput>, protocol::wire::Malformed> {
        let mut all = Vec::new();
        let none: &[u8] = &[];
        let parts = bytes.chunks(step).chain(bytes.is_empty().then_some(none));
        for mut part in parts {
            while let Some(came) = self.connection.receive(&mut part, &mut self.driver)? {
                all.push(came);
            }
        }
        Ok(all)
    }

    /// Passes well-formed `bytes` to the connection, `step` bytes at a time; returns the events.
    fn events(&mut self, bytes: &[u8], step: usize) -> Vec<Event> {
        let event = |came| match came {
            ConnectionInput::Event(event) => Some(event),
            ConnectionInput::Goodbye | ConnectionInput::Later => None,
        };
        self.take(bytes, step).unwrap().into_iter().filter_map(event).collect()
    }

    /// Returns an envelope for the peer, with the items that `write` adds.
    fn seal_envelope(&self, write: impl FnOnce(&mut protocol::wire::Writer)) -> Vec<u8> {
        let mut writer = protocol::wire::Writer::default();
        write(&mut writer);
        writer.seal(self.table.sender(self.connection.peer(), self.driver.now));
        writer.closed_envelopes().to_vec()
    }
}

/// Executes a handshake between A, the dialer, and B; returns each side's result.
fn do_handshake(
    a: &PeerTable,
    b: &PeerTable,
    to: NodeId,
) -> [Result<PeerSeen, HandshakeRefused>; 2] {
    let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
    let dialer = Arc::clone(&a.identity);
    let mut dialer = Handshake::dial(dialer, to, ConnectionKind::Small, [1; 32], &mut to_b);
    let mut acceptor = Handshake::accept(Arc::clone(&b.identity), [2; 32]);
    let mut outcomes = [None, None];
    while outcomes.iter().any(Option::is_none) && !(to_b.is_empty() && to_a.is_empty()) {
        let sent_bytes = std::mem::take(&mut to_b);
        if outcomes[1].is_none() {
            outcomes[1] = acceptor.receive(&sent_bytes, &mut to_a).transpose();
        }
        let sent_bytes = std::mem::take(&mut to_a);
        if outcomes[0].is_none() {
            outcomes[0] = dialer.receive(&sent_bytes, &mut to_b).transpose();
        }
    }
    outcomes.map(|outcome| outcome.expect("it ends"))
}

/// Returns both ends of a connection dialed by A, after its first ping was answered.
fn pair() -> [End; 2] {
    let tables = [Setup::of(A).table(A), Setup::of(B).table(B)];
    let [b, a] = do_handshake(&tables[0], &tables[1], B).map(Result::unwrap);
    let mut ends = [End::new(&tables[0], &b), End::new(&tables[1], &a)];
    assert!(exchange_bytes(&mut ends).iter().all(Vec::is_empty));
    ends
}

/// Exchanges bytes between both ends until neither has bytes to send; returns the events of each
/// end.
fn exchange_bytes(ends: &mut [End; 2]) -> [Vec<Event>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    loop {
        let mut quiet = true;
        for (from, to) in [(0, 1), (1, 0)] {
            let bytes = ends[from].take_written();
            quiet &= bytes.is_empty();
            events[to].extend(ends[to].events(&bytes, 10_000));
        }
        if quiet {
            return events;
        }
    }
}

fn request(id: u64, request: Request) -> Message {
    Message { id, body: Body::Request { remaining_ms: 1000, class: Class::Client, request } }
}

fn read(id: u64) -> Message {
    request(id, Request::Read { key: Bytes::from(id.to_string()), most: u32::MAX })
}

/// Returns a write of about `bytes` bytes.
fn write(id: u64, bytes: usize) -> Message {
    let key = Bytes::from(id.to_string());
    request(id, Request::Write { key, record: record(id, bytes) })
}

/// Returns a record of `bytes` + 8 bytes, or of the least length that a record has.
fn record(time: u64, bytes: usize) -> Record {
    let value: Vec<_> = (16..bytes).map(|at| (at % 251) as u8).collect();
    let version = Version { time, origin: 0 };
    Record::new(b"k", &lsm::Fields::new(Kind::Value, version), &value)
}

/// Returns the ids of the requests received.
fn ids(events: &[Event]) -> Vec<u64> {
    let id = |event: &Event| match event {
        Event::Request { id, .. } | Event::Reply { id, .. } => *id,
        other => panic!("{other:?}"),
    };
    events.iter().map(id).collect()
}
