//! Connections to the peer route: from unknown processes, from impostors, and from a broken node.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kit::raw::Client;
use protocol::handshake::{
    ConnectionKind, Handshake, HandshakeIdentity, HandshakeRefused, PeerSeen, Secret, Secrets,
};
use protocol::wire::{ENVELOPE_HEAD, Envelope, Item, Sender, Writer, envelope_len};
use protocol::{
    Body, Class, Clock, Incarnation, Layouts, LogPosition, Logs, Member, Message, NodeId,
    OwnCluster, Proof, Proofs, Reply, Request, Topology, ViewId, Views,
};

use crate::process::{Node, TIMEOUT, kvorum, wait_until};

pub(crate) const SECRET: &str = "sixteen bytes and more";

/// `--cluster` of the nodes. No process listens at these addresses: the test opens all connections.
pub(crate) const CLUSTER: &str = "a=http://127.0.0.1:1,b=http://127.0.0.1:2";

pub(crate) const UPGRADE: &str = "GET /v0/peer HTTP/1.1\r\nHost: localhost\r\n\
     Connection: Upgrade\r\nUpgrade: kvorum-peer/1\r\n\r\n";

/// Starts node a. The test simulates all other nodes.
fn node() -> Node {
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", SECRET);
    let args = ["--advertise", "http://127.0.0.1:1", "--cluster", CLUSTER];
    Node::start_with(command, tempfile::tempdir().unwrap(), &args)
}

pub(crate) fn topology(names: &[&str]) -> Topology {
    let member = |name: &&str| Member { name: (*name).to_owned(), zone: String::new(), weight: 1 };
    Topology::new(names.iter().map(member).collect(), 3).unwrap()
}

/// Returns a node's cluster secrets: the given one, and no second secret.
pub(crate) fn secrets(secret: &str) -> Arc<Secrets> {
    Arc::new(Secrets::new(Secret::new(secret.into()), None))
}

/// Returns node b's identity in handshakes.
fn b(topology: Topology, secret: &str) -> Arc<HandshakeIdentity> {
    let own = topology.find("b").unwrap();
    let layouts = Arc::new(Layouts::new_fixed(&topology, own));
    let proofs = Arc::new(Proofs::new(Proof::default()));
    let known = (Arc::new(Logs::first(Incarnation(7))), proofs, layouts);
    let cluster = Arc::new(OwnCluster::new(None));
    Arc::new(HandshakeIdentity::new(
        Views::new_fixed(topology),
        own,
        cluster,
        secrets(secret),
        known,
    ))
}

pub(crate) static USUAL: LazyLock<Topology> = LazyLock::new(|| topology(&["a", "b"]));

pub(crate) fn good_b() -> Arc<HandshakeIdentity> {
    b(USUAL.clone(), SECRET)
}

/// Opens a connection, and upgrades it to the peer protocol.
pub(crate) fn connect_upgraded(node: &Node) -> TcpStream {
    let mut client = node.client();
    client.send(UPGRADE);
    let head = client.read_head().unwrap();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("kvorum-peer/1")));
    client.stream
}

/// A handshake that a test has performed as the dialer.
pub(crate) struct DialedHandshake {
    pub(crate) stream: TcpStream,
    pub(crate) outcome: Result<PeerSeen, HandshakeRefused>,
    /// The bytes that the dialer has sent.
    sent: Vec<u8>,
}

/// Opens connections until a handshake has an outcome: on a busy machine a handshake may outlast
/// the node's timeout.
pub(crate) fn perform_handshake(node: &Node, own: &Arc<HandshakeIdentity>) -> DialedHandshake {
    let mut dialed = None;
    wait_until("the outcome of a handshake", || {
        dialed = try_handshake(node, own);
        dialed.is_some()
    });
    dialed.unwrap()
}

/// Performs a handshake; `None` if the node closes the connection before the outcome.
fn try_handshake(node: &Node, own: &Arc<HandshakeIdentity>) -> Option<DialedHandshake> {
    let mut stream = connect_upgraded(node);
    let (mut sent, mut told) = (0, Vec::new());
    let own = Arc::clone(own);
    let mut dialing = Handshake::dial(own, NodeId(0), ConnectionKind::Small, [9; 32], &mut told);
    let mut heard = [0; 4096];
    loop {
        stream.write_all(&told[sent..]).ok()?;
        sent = told.len();
        let length = stream.read(&mut heard).ok().filter(|length| *length > 0)?;
        let received = dialing.receive(&heard[..length], &mut told);
        if let Some(outcome) = received.transpose() {
            // The node may already have closed a refused connection.
            let _ = stream.write_all(&told[sent..]);
            return Some(DialedHandshake { stream, outcome, sent: told });
        }
    }
}

/// Opens a connection on which node b has completed the handshake.
fn connect_as_b(node: &Node) -> TcpStream {
    let dialed = perform_handshake(node, &good_b());
    assert_eq!(dialed.outcome.unwrap().node, NodeId(0));
    dialed.stream
}

/// Reads all bytes until the connection is closed or reset.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut all = Vec::new();
    if let Err(error) = stream.read_to_end(&mut all) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    all
}

fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn honest() -> Sender {
    let view = ViewId { epoch: 1, placement: USUAL.digest() };
    Sender { view, clock: now_micros() << 12, position: LogPosition::START }
}

fn request(id: u64, request: Request) -> Message {
    Message { id, body: Body::Request { remaining_ms: 1000, class: Class::Client, request } }
}

fn envelope(message: &Message, sender: Sender) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(message);
    writer.seal(sender);
    writer.closed_envelopes().to_vec()
}

/// Reads the next reply; returns its sender, the request's number, and the reply.
fn reply(stream: &mut TcpStream) -> (Sender, u64, Reply) {
    let mut read = Vec::new();
    loop {
        if let Some(length) = envelope_len(&read).unwrap()
            && read.len() >= length
        {
            let bytes = read.drain(..length).collect::<Vec<_>>();
            let mut envelope = Envelope::open(Bytes::from(bytes)).unwrap();
            while let Some(item) = envelope.next_item().unwrap() {
                if let Item::Message(Message { id, body: Body::Reply(reply) }) = item {
                    return (envelope.sender(), id, reply);
                }
            }
        }
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert_ne!(length, 0, "closed instead of a reply");
        read.extend_from_slice(&piece[..length]);
    }
}

fn metric(node: &Node, name: &str) -> u64 {
    let text = String::from_utf8(node.client().get("/metrics").body()).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const REFUSED: &str = "kvorum_peer_handshakes_refused_total";

const UNFINISHED: &str = "kvorum_peer_handshakes_unfinished_total";

#[test]
fn the_route_is_for_peers_only() {
    let node = node();
    let head = |rest: &str| format!("GET /v0/peer HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n");
    let cases = [
        (426, head("")),
        (426, head("Connection: Upgrade\r\nUpgrade: websocket\r\n")),
        (426, head("Connection: Upgrade\r\nUpgrade: kvorum-peer/2\r\n")),
        (426, head("Connection: Upgrade\r\n")),
        (426, head("Upgrade: kvorum-peer/1\r\n")),
        (426, UPGRADE.replace("HTTP/1.1", "HTTP/1.0")),
        (400, head("Connection: Upgrade\r\nUpgrade: kvorum-peer/1\r\nContent-Length: 0\r\n")),
        (405, UPGRADE.replace("GET", "DELETE")),
        (405, UPGRADE.replace("GET", "POST")),
        (400, UPGRADE.replace("/v0/peer", "/v0/peers")),
    ];
    for (status, request) in cases {
        let mut client = node.client();
        client.send(&request);
        let response = client.response();
        assert_eq!(response.status, status, "{request}");
        response.json();
        if status == 426 {
            assert_eq!(response.header("upgrade"), Some("kvorum-peer/1"));
        }
    }
    let mut client = node.client();
    client.send(
        "PUT /v0/peer HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                 Upgrade: kvorum-peer/1\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert_eq!(client.response().status, 405);
}

#[test]
fn an_upgrade_on_another_route_is_ignored() {
    let node = node();
    for target in ["/healthz", "/metrics", "/v0/status"] {
        let mut client = node.client();
        client.send(UPGRADE.replace("/v0/peer", target));
        assert_eq!(client.response().status, 200, "{target}");
    }
}

#[test]
fn unauthenticated_connections_get_no_data() {
    let node = node();
    let mut recording = perform_handshake(&node, &good_b()).sent;
    recording.extend_from_slice(&envelope(&request(1, Request::Ping), honest()));
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    let http = UPGRADE.as_bytes().to_vec();
    for said in [vec![], vec![0; 100_000], vec![0xff; 100_000], tls, http, recording] {
        let mut stream = connect_upgraded(&node);
        // Sending may fail, because the node may close the connection before it has received all
        // bytes.
        let _ = stream.write_all(&said);
        let heard = until_closed(&mut stream);
        let refusal = [1, 0, 0, 0, 3, 3];
        assert!(heard.is_empty() || heard.ends_with(&refusal), "{} bytes", heard.len());
    }
    let other_secret = b(USUAL.clone(), "another secret, long enough");
    let mut refused = perform_handshake(&node, &other_secret);
    assert!(refused.outcome.unwrap_err().text.contains("different cluster secrets"));
    assert_eq!(until_closed(&mut refused.stream), b"");
    let all = || metric(&node, REFUSED) + metric(&node, UNFINISHED);
    wait_until("all of them are counted", || all() >= 7);
    // Whoever says nothing is not refused.
    assert!(metric(&node, UNFINISHED) >= 1 && metric(&node, REFUSED) >= 2);
    assert_eq!(metric(&node, "kvorum_peer_messages_received_total"), 0);
}

#[test]
fn many_unauthenticated_connections_block_no_peer_and_are_closed() {
    let node = node();
    let (files, resident) = (node.open_files(), node.resident());
    let mut strangers: Vec<TcpStream> = (0..300).map(|_| connect_upgraded(&node)).collect();
    for stranger in &mut strangers {
        // Sending may fail, because the node has already closed the first connections.
        let _ = stranger.write_all(&[90, 0, 0]);
    }
    let mut peer = connect_as_b(&node);
    peer.write_all(&envelope(&request(1, Request::Ping), honest())).unwrap();
    assert_eq!(reply(&mut peer).2, Reply::Pong);
    assert_eq!(node.client().get("/healthz").status, 200);
    wait_until("the strangers are gone", || node.open_files() <= files + 4);
    assert!(node.resident() < resident + (16 << 20), "{} from {resident}", node.resident());
    for stranger in &mut strangers {
        assert_eq!(until_closed(stranger), b"");
    }
}

#[test]
fn a_list_that_differs_is_told_to_both_sides() {
    let node = node();
    for _ in 0..3 {
        let other = topology(&["a", "b", "c"]);
        let mut dialed = perform_handshake(&node, &b(other, SECRET));
        let refused = dialed.outcome.unwrap_err();
        assert!(refused.text.contains("node c is in our list and not in a's"), "{refused}");
        assert_eq!(until_closed(&mut dialed.stream), b"");
    }
    wait_until("it is counted", || metric(&node, REFUSED) == 3);
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("topologies")).collect();
    assert_eq!(lines.len(), 1, "said once, not for every try: {log}");
    assert!(lines[0].contains("node c is in b's list and not in ours"), "{log}");
}

#[test]
fn a_forged_clock_moves_nothing() {
    let node = node();
    let mut peer = connect_as_b(&node);
    let hour = 3_600_000_000;
    let ahead = Sender { clock: (now_micros() + hour) << 12, ..honest() };
    for clock in [ahead.clock, u64::MAX, 0] {
        let sender = Sender { clock, ..ahead };
        peer.write_all(&envelope(&request(1, Request::Ping), sender)).unwrap();
        let (own, _, pong) = reply(&mut peer);
        assert_eq!(pong, Reply::Pong);
        assert!(own.clock <= Clock::limit(now_micros(), 1_000_000), "its clock was carried away");
    }
}

#[test]
fn another_epoch_is_answered_and_never_served() {
    let node = node();
    let mut peer = connect_as_b(&node);
    let view = ViewId { epoch: 1, placement: 1 };
    let sender = Sender { view, ..honest() };
    peer.write_all(&envelope(&request(1, Request::Ping), sender)).unwrap();
    assert_eq!(reply(&mut peer).2, Reply::TopologyMismatch);
    peer.write_all(&envelope(&request(2, Request::Ping), honest())).unwrap();
    assert_eq!(reply(&mut peer).2, Reply::Pong);
}

#[test]
fn what_is_malformed_closes_its_connection_and_no_other() {
    let node = node();
    let mut good = connect_as_b(&node);
    let ping = envelope(&request(1, Request::Ping), honest());
    let mut flipped = ping.clone();
    flipped[ENVELOPE_HEAD] ^= 1;
    let garbage: Vec<u8> = (0..50_000_u32).map(|at| (at * 31 % 251) as u8).collect();
    let endless = [[0; 8].as_slice(), &[0xff; 4]].concat();
    // The last case is a malformed record in a valid envelope, which must not reach the store.
    let mut record = envelope(&request(1, Request::Read { key: "k".into(), most: 1 }), honest());
    record[ENVELOPE_HEAD] = 2;
    let check = xxhash_rust::xxh3::xxh3_64(&record[8..]);
    record[..8].copy_from_slice(&check.to_le_bytes());
    let cases = [flipped, garbage, endless, record];
    for case in &cases {
        let mut stream = connect_as_b(&node);
        stream.write_all(case).unwrap();
        until_closed(&mut stream);
    }
    wait_until("the count of all cases", || {
        metric(&node, "kvorum_peer_malformed_total") == cases.len() as u64
    });
    good.write_all(&ping).unwrap();
    assert_eq!(reply(&mut good).2, Reply::Pong);
    let mut client: Client = node.client();
    assert_eq!(client.get("/healthz").status, 200);
}

#[test]
fn a_peer_is_told_when_the_node_stops() {
    let node = node();
    let mut peer = connect_as_b(&node);
    peer.write_all(&envelope(&request(1, Request::Ping), honest())).unwrap();
    assert_eq!(reply(&mut peer).2, Reply::Pong);
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    node.signal(rustix::process::Signal::TERM);
    let last = until_closed(&mut peer);
    let mut envelope = Envelope::open(Bytes::from(last)).unwrap();
    assert_eq!(envelope.next_item().unwrap(), Some(Item::Goodbye));
    assert_eq!(node.wait().0.code(), Some(0));
}
