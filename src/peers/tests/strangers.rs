//! Unauthenticated connections, and peers that send malformed data.

use std::net::SocketAddr;

use protocol::handshake::{ConnectionKind, Handshake};
use protocol::wire::Writer;
use protocol::{Body, Event, Message, Reply, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::*;
use crate::counters::clocks;

/// Starts nodes a and b. Node b listens at the returned address.
async fn start_listening_nodes() -> (Node, Node, SocketAddr) {
    let (ports, urls) = ports();
    let [_, port] = ports;
    let b = Node::start(B, &urls, &Setup::default(), only_pings);
    let address = port.local_addr().unwrap();
    b.listen(port);
    (Node::start(A, &urls, &Setup::default(), only_pings), b, address)
}

/// Returns a connection after its upgrade. Nothing has been sent on it yet.
async fn connect_upgraded(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /v0/peer HTTP/1.1\r\nUpgrade: kvorum-peer/1\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    stream
}

/// Reads all bytes until the connection is closed.
async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset counts as closed.
    let _ = stream.read_to_end(&mut all).await;
    all
}

#[test]
fn a_silent_unauthenticated_connection_is_closed() {
    run(async {
        let (_, b, address) = start_listening_nodes().await;
        let mut stream = connect_upgraded(address).await;
        assert_eq!(until_closed(&mut stream).await, b"");
        assert_eq!(b.counts().unfinished.get(), 1);
    });
}

#[test]
fn a_connection_that_sends_garbage_is_closed_at_once() {
    run(async {
        let (_, b, address) = start_listening_nodes().await;
        let clienthello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice();
        for garbage in [&[0xff; 5000], b"GET / HTTP/1.1\r\n\r\n".as_slice(), clienthello] {
            let mut stream = connect_upgraded(address).await;
            stream.write_all(garbage).await.unwrap();
            assert_eq!(until_closed(&mut stream).await, b"");
        }
        assert_eq!(b.counts().refused.get(), 3);
        assert_eq!(b.facts.complaints.subjects(), [None], "not for its being late");
        assert!(b.try_event().is_none());
    });
}

#[test]
fn many_strangers_do_not_keep_a_peer_out() {
    run(async {
        let (a, b, address) = start_listening_nodes().await;
        let mut strangers = Vec::new();
        for _ in 0..80 {
            strangers.push(connect_upgraded(address).await);
        }
        until("those that came first are broken off", || b.counts().unfinished.get() >= 16).await;
        a.connect(B).await;
    });
}

/// Records the bytes that node `a` sends on a new connection, up to and including its proof.
async fn record_handshake(a: &Node, address: SocketAddr) -> Vec<u8> {
    let mut stream = connect_upgraded(address).await;
    let mut said = Vec::new();
    let identity = a.facts.table.identity.clone();
    let mut handshake = Handshake::dial(identity, B, ConnectionKind::Small, [4; 32], &mut said);
    stream.write_all(&said).await.unwrap();
    let mut heard = [0; 512];
    let length = stream.read(&mut heard).await.unwrap();
    handshake.receive(&heard[..length], &mut said).unwrap();
    said
}

#[test]
fn a_replayed_proof_opens_nothing() {
    run(async {
        let (a, b, address) = start_listening_nodes().await;
        let mut recording = record_handshake(&a, address).await;
        // The recording continues with the verdict that follows a proof, and with a request.
        recording.extend_from_slice(&[1, 0, 0, 0, 3, 0]);
        let mut writer = Writer::default();
        writer.message(&write(1, 10));
        writer.seal(a.facts.table.sender(B, clocks::now()));
        recording.extend_from_slice(writer.closed_envelopes());
        let mut stream = connect_upgraded(address).await;
        stream.write_all(&recording).await.unwrap();
        let heard = until_closed(&mut stream).await;
        assert!(heard.len() < 200, "a hello and a refusal: {} bytes", heard.len());
        until("it is counted", || b.counts().refused.get() > 0).await;
        assert!(b.try_event().is_none());
    });
}

#[test]
fn an_echo_of_a_nodes_own_handshake_does_not_authenticate() {
    run(async {
        let (ports, urls) = ports();
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let [_, port] = ports;
        port.set_nonblocking(true).unwrap();
        let port = tokio::net::TcpListener::from_std(port).unwrap();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = port.accept().await {
                let (stream, _) = answer_101(stream).await;
                let (mut from, mut to) = tokio::io::split(stream);
                tokio::task::spawn_local(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        a.peers.send(B, read(1));
        assert!(matches!(a.event().await, Event::Unreachable(B)));
        assert_eq!((a.counts().refused.get(), a.counts().connected.get()), (1, 0));
    });
}

/// Starts two nodes. The second node expects other settings than those of the dialing node.
async fn start_incompatible_nodes(setup: Setup) -> (Node, Node) {
    let (ports, urls) = ports();
    let a = Node::start(A, &urls, &setup, only_pings);
    let b = Node::start(B, &urls, &Setup::default(), only_pings);
    let [_, port] = ports;
    b.listen(port);
    (a, b)
}

#[test]
fn incompatible_peers_refuse_each_other_and_log_it_once() {
    run(async {
        for setup in [
            Setup { secret: "another", ..Setup::default() },
            Setup { replicas: 2, ..Setup::default() },
        ] {
            let (a, b) = start_incompatible_nodes(setup).await;
            for tries in 1..=3 {
                a.peers.send(B, read(1));
                assert!(matches!(a.event().await, Event::Unreachable(B)));
                assert_eq!(a.counts().refused.get(), tries);
                until("both count it", || b.counts().refused.get() == tries).await;
            }
            assert!(b.try_event().is_none());
            assert_eq!(a.facts.complaints.subjects(), [Some(B)]);
            assert_eq!(b.facts.complaints.subjects(), [None]);
        }
    });
}

#[test]
fn a_url_of_this_node_itself_is_noticed() {
    run(async {
        let port = port();
        let urls = [url(&port), url(&port)];
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        a.listen(port);
        a.peers.send(B, read(1));
        assert!(matches!(a.event().await, Event::Unreachable(B)));
        let complaints = &a.facts.complaints;
        until("both ends say so", || complaints.subjects() == [None, Some(B)]).await;
    });
}

#[test]
fn other_servers_are_distinguished_from_nodes() {
    run(async {
        for answer in ["HTTP/1.1 404 Not Found\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n\r\n"] {
            let (ports, urls) = ports();
            let a = Node::start(A, &urls, &Setup::default(), only_pings);
            let [_, port] = ports;
            port.set_nonblocking(true).unwrap();
            let port = tokio::net::TcpListener::from_std(port).unwrap();
            tokio::task::spawn_local(async move {
                let (mut stream, _) = port.accept().await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
                until_closed(&mut stream).await;
            });
            a.peers.send(B, read(1));
            assert!(matches!(a.event().await, Event::Unreachable(B)));
            assert_eq!(a.facts.complaints.subjects(), [Some(B)]);
        }
    });
}

/// Asserts that node b closes an authenticated node's connection after these bytes.
async fn closes_on(what: &str, bytes: impl FnOnce(&Node) -> Vec<u8>) {
    let (a, b, address) = start_listening_nodes().await;
    let mut stream = connect_authenticated(&a, address).await;
    let mut good = connect_authenticated(&a, address).await;
    stream.write_all(&bytes(&a)).await.unwrap();
    until_closed(&mut stream).await;
    until(what, || b.counts().malformed.get() == 1).await;
    // The other connection stays open.
    let mut writer = Writer::default();
    writer.message(&request(1, Request::Ping));
    writer.seal(a.facts.table.sender(B, clocks::now()));
    good.write_all(writer.closed_envelopes()).await.unwrap();
    assert_ne!(good.read(&mut [0; 64]).await.unwrap(), 0, "{what}");
    assert!(b.try_event().is_none(), "{what}");
}

fn envelope(a: &Node, put: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    put(&mut writer);
    writer.seal(a.facts.table.sender(B, clocks::now()));
    writer.closed_envelopes().to_vec()
}

#[test]
fn malformed_and_oversized_envelopes_close_their_connection_and_no_other() {
    run(async {
        closes_on("garbage", |_| vec![0x55; 10_000]).await;
        closes_on("a wrong check", |a| {
            let mut bytes = envelope(a, |writer| writer.message(&write(1, 100)));
            bytes[60] ^= 1;
            bytes
        })
        .await;
        closes_on("an oversized envelope", |_| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0].to_vec())
            .await;
        closes_on("a long message in one piece", |a| {
            envelope(a, |writer| writer.message(&write(1, 40_000)))
        })
        .await;
        closes_on("the first piece of an oversized message", |a| {
            let piece = [[2, 0, 0, 0, 0, 0, 0, 1].as_slice(), &[0; 92]].concat();
            envelope(a, |writer| writer.piece(&piece, false))
        })
        .await;
        closes_on("pieces that make no message", |a| {
            let piece = [[2, 0, 0, 0, 80, 0, 0, 0].as_slice(), &[0xff; 92]].concat();
            envelope(a, |writer| writer.piece(&piece, true))
        })
        .await;
        closes_on("credit for nothing", |a| envelope(a, |writer| writer.credit(1))).await;
        closes_on("a reply on a connection for requests", |a| {
            let message = Message { id: 1, body: Body::Reply(Reply::Stored) };
            envelope(a, |writer| writer.message(&message))
        })
        .await;
    });
}

#[test]
fn another_topology_is_answered_and_never_served() {
    run(async {
        let (a, b, address) = start_listening_nodes().await;
        let mut stream = connect_authenticated(&a, address).await;
        let mut writer = Writer::default();
        writer.message(&write(7, 10));
        let view = protocol::ViewId { epoch: 1, placement: 1 };
        let sender = protocol::wire::Sender { view, ..a.facts.table.sender(B, clocks::now()) };
        writer.seal(sender);
        stream.write_all(writer.closed_envelopes()).await.unwrap();
        let mut answer = Vec::new();
        let envelope = loop {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            if let Some(length) = protocol::wire::envelope_len(&answer).unwrap()
                && answer.len() >= length
            {
                break answer.split_off(0);
            }
        };
        let mut envelope = protocol::wire::Envelope::open(envelope.into()).unwrap();
        let reply = Message { id: 7, body: Body::Reply(Reply::TopologyMismatch) };
        let item = envelope.next_item().unwrap();
        assert_eq!(item, Some(protocol::wire::Item::Message(reply)));
        assert!(b.try_event().is_none());
    });
}
