//! Failures of delivery. Each failure is reported, and affects no other request.

use protocol::handshake::HandshakeIdentity;
use protocol::{Event, Reply, Request};
use tokio::net::TcpStream;

use super::world::*;
use crate::counters::clocks;
use crate::transport::Stream;

#[test]
fn a_refused_connection_is_reported_once_for_all_waiting_requests() {
    run(async {
        let (ports, urls) = ports();
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        drop(ports);
        for id in 0..3 {
            a.peers.send(B, read(id));
        }
        assert!(matches!(a.event().await, Event::Unreachable(B)), "one for all of them");
        a.peers.send(B, read(9));
        assert!(matches!(a.event().await, Event::Unreachable(B)), "and again for the next");
    });
}

#[test]
fn a_request_right_after_a_peer_is_back_is_served() {
    run(async {
        let (ports, urls) = ports();
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let [_, port] = ports;
        let address = port.local_addr().unwrap();
        drop(port);
        for id in 0..50 {
            a.peers.send(B, read(id));
            assert!(matches!(a.event().await, Event::Unreachable(B)));
        }
        let b = Node::start(B, &urls, &Setup::default(), only_pings);
        b.listen(std::net::TcpListener::bind(address).unwrap());
        a.connect(B).await;
    });
}

#[test]
fn a_lost_connection_is_reported_once_and_the_next_request_reconnects() {
    run(async {
        let (a, b) = pair(only_pings).await;
        a.connect(B).await;
        a.peers.send(B, write(1, 100_000));
        a.peers.send(B, read(2));
        let (one, two) = (b.request().await, b.request().await);
        assert_ne!(one.0, two.0, "one on each connection");
        for connection in b.peers.connections() {
            connection.close("the test wants it");
        }
        assert!(matches!(a.event().await, Event::LinkLost(B)));
        b.peers.respond(one.0, one.1, Reply::Stored);
        a.connect(B).await;
        assert_eq!(a.facts.observations(B).links(), 1);
    });
}

/// Starts nodes a and b. Node b accepts a's connection, and then neither reads from it nor answers,
/// because it has no driver for the connection.
fn start_beside_a_stuck_peer() -> [Node; 2] {
    let (ports, urls) = ports();
    let [a, b] = [A, B].map(|node| Node::start(node, &urls, &Setup::default(), only_pings));
    let [_, port] = ports;
    port.set_nonblocking(true).unwrap();
    let port = tokio::net::TcpListener::from_std(port).unwrap();
    let identity = b.facts.table.identity.clone();
    tokio::task::spawn_local(async move {
        let (stream, _) = port.accept().await.unwrap();
        let stuck = complete_handshake_as_acceptor(stream, identity).await;
        std::future::pending::<()>().await;
        drop(stuck);
    });
    [a, b]
}

#[test]
fn a_peer_that_is_silent_is_given_up() {
    run(async {
        let [a, _b] = start_beside_a_stuck_peer();
        a.peers.send(B, read(1));
        assert!(matches!(a.event().await, Event::LinkUp(B)));
        assert!(matches!(a.event().await, Event::LinkLost(B)));
    });
}

/// Performs the acceptor's side of the connection setup, up to the first envelope.
async fn complete_handshake_as_acceptor(
    stream: TcpStream,
    identity: std::sync::Arc<HandshakeIdentity>,
) -> Stream {
    let (mut stream, _) = answer_101(stream).await;
    let handshake = protocol::handshake::Handshake::accept(identity, [3; 32]);
    let handshake_outcome =
        crate::peers::greet::run_handshake(&mut stream, handshake, Vec::new(), Vec::new()).await;
    handshake_outcome.map(drop).unwrap();
    stream
}

#[test]
fn only_messages_beyond_the_queue_limit_fail() {
    run(async {
        let (a, b) = pair(only_pings).await;
        // Without a connection, requests wait for the result of the dial.
        let (mut sent, mut overflown) = (0, 0);
        for id in 0..1000 {
            a.peers.send(B, write(id, 10_000));
            sent += 1;
        }
        loop {
            match a.event().await {
                Event::MessageDropped { peer: B, id } => {
                    assert!(id > 800, "{id} fits into {QUEUE_BYTES} bytes");
                    overflown += 1;
                }
                Event::LinkUp(B) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(overflown, 1000 - QUEUE_BYTES / (10_000 + 37), "the others wait");
        // All requests that were not dropped arrive.
        for id in 0..sent - overflown {
            assert_eq!(b.request().await.1, id as u64);
        }
    });
}

#[test]
fn a_slow_reader_costs_only_its_own_requests() {
    run(async {
        // The peer does not answer pings either. If its buffers fill too slowly, the link is closed
        // before the overflow.
        while !overflows_at_a_slow_reader().await {}
    });
}

/// Sends writes to a node that reads nothing, until a write overflows. Returns false if the link
/// was lost instead.
async fn overflows_at_a_slow_reader() -> bool {
    let [a, _b] = start_beside_a_stuck_peer();
    a.peers.send(B, read(0));
    assert!(matches!(a.event().await, Event::LinkUp(B)));
    // The socket's buffers accept some MiB before the connection's own limit is reached.
    let mut id = 1;
    let overflown = loop {
        a.peers.send(B, write(id, 30_000));
        id += 1;
        tokio::task::yield_now().await;
        let waiting: usize =
            a.peers.connections().iter().map(|connection| connection.unsent_bytes()).sum();
        assert!(waiting <= QUEUE_BYTES + 70_000, "{waiting} bytes wait");
        if id % 50 == 0
            && let Some(event) = a.try_event()
        {
            break event;
        }
        assert!(id < 10_000, "it never overflows");
    };
    match overflown {
        Event::MessageDropped { peer: B, .. } => true,
        Event::LinkLost(B) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_reads_no_replies_is_not_read_from() {
    run(async {
        let long = |request: &Request| match request {
            Request::Read { .. } => {
                Some(Reply::Found { record: record(1, 60_000), authoritative: true })
            }
            _ => Some(Reply::Pong),
        };
        let (ports, urls) = ports();
        let [_, port] = ports;
        let b = Node::start(B, &urls, &Setup::default(), long);
        let address = port.local_addr().unwrap();
        b.listen(port);
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let mut stream = connect_authenticated(&a, address).await;
        let mut writer = protocol::wire::Writer::default();
        for id in 0..2000 {
            writer.message(&read(id));
        }
        writer.seal(a.facts.table.sender(B, clocks::now()));
        tokio::io::AsyncWriteExt::write_all(&mut stream, writer.closed_envelopes()).await.unwrap();
        // 120 MB of replies are due. Node b buffers only a part of them, within its limit.
        until("b has much to say", || {
            b.peers.connections().iter().any(|connection| connection.unsent_bytes() > 600_000)
        })
        .await;
        for connection in b.peers.connections() {
            assert!(
                connection.unsent_bytes() <= QUEUE_BYTES + 70_000,
                "{} bytes wait",
                connection.unsent_bytes()
            );
        }
    });
}

#[test]
fn a_goodbye_keeps_requests_away_and_lets_replies_through() {
    run(async {
        let (a, b) = pair(only_pings).await;
        a.connect(B).await;
        a.peers.send(B, read(1));
        let (connection, id, _) = b.request().await;
        b.peers.goodbye();
        until("a heard it", || {
            a.peers.connections().iter().all(|connection| connection.is_leaving())
        })
        .await;
        a.peers.send(B, read(2));
        assert!(matches!(a.event().await, Event::MessageDropped { peer: B, id: 2 }));
        b.peers.respond(connection, id, Reply::Absent { authoritative: true });
        assert_eq!(a.reply().await, (1, Reply::Absent { authoritative: true }));
        b.peers.close().await;
        assert!(matches!(a.event().await, Event::LinkLost(B)));
    });
}

#[test]
fn a_closing_node_still_sends_its_pending_replies() {
    run(async {
        let (a, b) = pair(only_pings).await;
        a.connect(B).await;
        a.fetch(B, 1, 8 + 700_000);
        let (connection, id, _) = b.request().await;
        b.peers.respond(
            connection,
            id,
            Reply::Found { record: record(1, 700_000), authoritative: true },
        );
        b.peers.close().await;
        assert_eq!(a.reply().await.0, 1);
        assert!(matches!(a.event().await, Event::LinkLost(B)));
    });
}

#[test]
fn requests_of_one_connection_are_lost_when_the_other_connection_fails() {
    run(async {
        let (ports, urls) = ports();
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let [_, port] = ports;
        let b = Node::start(B, &urls, &Setup::default(), only_pings);
        port.set_nonblocking(true).unwrap();
        let port = tokio::net::TcpListener::from_std(port).unwrap();
        let identity = b.facts.table.identity.clone();
        tokio::task::spawn_local(async move {
            // The small connection is dialed first.
            let small = port.accept().await.unwrap();
            let (bulk, _) = port.accept().await.unwrap();
            let mut bulk = complete_handshake_as_acceptor(bulk, identity).await;
            let mut write = [0; 1000];
            tokio::io::AsyncReadExt::read_exact(&mut bulk, &mut write).await.unwrap();
            drop(small);
            std::future::pending::<()>().await;
        });
        a.peers.send(B, write(1, 100_000));
        assert!(matches!(a.event().await, Event::LinkLost(B)), "it may have been done");
    });
}
