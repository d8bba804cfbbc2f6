//! Delivery: each message arrives once, on the right connection.

use protocol::{Event, Filter, Incarnation, Message, NotIssued, PageRequest, Reply, Request};

use super::world::*;
use crate::counters::clocks;
use crate::peers::PeerInput;

#[test]
fn requests_and_replies_travel() {
    run(async {
        let (a, b) = pair(|_| None).await;
        a.peers.send(B, read(7));
        a.peers.send(B, write(8, 100));
        match a.next().await {
            PeerInput::PeerSeen { peer, incarnation, knows_us, .. } => {
                assert_eq!((peer, incarnation, knows_us), (B, Incarnation(101), None));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(a.event().await, Event::LinkUp(B)));
        let PeerInput::PeerSeen { peer: A, incarnation: Incarnation(100), .. } = b.next().await
        else {
            panic!("b does not know who came");
        };
        let (connection, first, read) = b.request().await;
        assert_eq!((first, &read), (7, &Request::Read { key: "7".into(), most: u32::MAX }));
        let (_, second, write) = b.request().await;
        let expected = Request::Write { key: "8".into(), record: record(8, 100) };
        assert_eq!((second, write), (8, expected));
        b.peers.respond(connection, 8, Reply::Stored);
        b.peers.respond(connection, 7, Reply::Absent { authoritative: true });
        assert_eq!(a.reply().await, (8, Reply::Stored));
        assert_eq!(a.reply().await, (7, Reply::Absent { authoritative: true }));
    });
}

#[test]
fn messages_of_one_turn_are_one_envelope_and_one_write() {
    run(async {
        let (a, b) = pair(|_| Some(Reply::Stored)).await;
        a.peers.send(B, request(0, Request::Ping));
        assert!(matches!(a.event().await, Event::LinkUp(B)));
        a.reply().await;
        let (writes, envelopes) = (a.counts().writes.get(), a.counts().envelopes_sent.get());
        let (answers, back) = (b.counts().writes.get(), b.counts().envelopes_sent.get());
        for id in 1..=100 {
            a.peers.send(B, write(id, 10));
        }
        for id in 1..=100 {
            assert_eq!(a.reply().await, (id, Reply::Stored));
        }
        // Pings may have been sent in between.
        assert!(a.counts().writes.get() - writes < 10);
        assert!(a.counts().envelopes_sent.get() - envelopes < 10);
        assert!(b.counts().writes.get() - answers < 10);
        assert!(b.counts().envelopes_sent.get() - back < 10);
    });
}

#[test]
fn long_values_travel_in_both_directions() {
    run(async {
        let long = |request: &Request| match request {
            Request::Read { .. } => {
                Some(Reply::Found { record: record(1, 5 << 20), authoritative: true })
            }
            Request::Write { record, .. } => {
                assert_eq!(record.byte_len(), 8 + 900_000);
                Some(Reply::Stored)
            }
            _ => Some(Reply::Pong),
        };
        let (a, _b) = pair(long).await;
        a.connect(B).await;
        a.fetch(B, 1, 8 + (5 << 20));
        a.peers.send(B, write(2, 900_000));
        a.peers.send(B, request(3, Request::Ping));
        let mut replies = [a.reply().await, a.reply().await, a.reply().await];
        assert!(replies[0].0 != 1, "a short reply overtakes a long one");
        replies.sort_by_key(|(id, _)| *id);
        let found = Reply::Found { record: record(1, 5 << 20), authoritative: true };
        assert_eq!(replies[0], (1, found));
        assert_eq!(replies[1..], [(2, Reply::Stored), (3, Reply::Pong)]);
        assert_eq!(a.counts().connected.get(), 2, "a small connection and a bulk connection");
    });
}

#[test]
fn a_long_request_keeps_its_reservation_until_it_is_dropped() {
    run(async {
        let (a, b) = pair(only_pings).await;
        let received = &b.facts.received;
        let all = received.take(ROOM_BYTES).unwrap();
        a.peers.send(B, write(1, 900_000));
        a.peers.send(B, write(2, 900_000));
        a.connect(B).await;
        let sent = || b.counts().bytes_received.get();
        until("all that there is credit for has come", || sent() >= 262_144).await;
        a.peers.send(B, request(3, Request::Ping));
        assert_eq!(a.reply().await, (3, Reply::Pong), "short ones pass it");
        assert!(sent() < 600_000, "it comes without credit");
        drop(all);
        for id in [1, 2] {
            let (_, came, first) = b.request().await;
            assert_eq!(came, id);
            // Free memory is reserved for the waiting request, so no other request overtakes it.
            assert!(received.reserved_bytes() >= 900_000, "{}", received.reserved_bytes());
            drop(first);
        }
        assert_eq!(received.reserved_bytes(), 0);
    });
}

#[test]
fn a_record_without_a_reservation_is_discarded() {
    run(async {
        let long = |request: &Request| match request {
            Request::Read { .. } => {
                Some(Reply::Found { record: record(1, 5 << 20), authoritative: true })
            }
            _ => Some(Reply::Pong),
        };
        let (a, _b) = pair(long).await;
        a.connect(B).await;
        a.peers.send(B, read(1));
        assert_eq!(a.reply().await, (1, Reply::Busy), "none was set aside");
        a.fetch(B, 2, 1 << 20);
        assert_eq!(a.reply().await, (2, Reply::Busy), "it is longer than was told");
        a.fetch(B, 3, 8 + (5 << 20));
        drop(a.peers.take_reservation(B, 3));
        assert_eq!(a.reply().await, (3, Reply::Busy), "nobody waits any more");
        a.fetch(B, 4, 8 + (5 << 20));
        assert!(matches!(a.reply().await, (4, Reply::Found { .. })));
        assert!(a.peers.take_reservation(B, 4).is_none(), "it is the record's now");
    });
}

#[test]
fn pages_and_hints_take_the_bulk_connection() {
    run(async {
        let (a, b) = pair(|_| None).await;
        let page = PageRequest {
            start: "a".into(),
            end: None,
            filter: Filter::HeldBy { node: A, since: 0, promise: 0, partitions: Vec::new() },
            max_bytes: 1000,
        };
        a.peers.send(B, read(1));
        a.peers.send(B, request(2, Request::Page(page)));
        a.peers.send(B, request(3, Request::Writes { items: vec![("k".into(), record(1, 9))] }));
        let mut connections = std::collections::BTreeMap::new();
        for _ in 0..3 {
            let (connection, id, _) = b.request().await;
            connections.insert(id, connection);
        }
        assert!(
            connections[&1] != connections[&2] && connections[&2] == connections[&3],
            "{connections:?}"
        );
        let ups = [a.event().await];
        assert!(matches!(ups, [Event::LinkUp(B)]));
    });
}

#[test]
fn a_peer_is_found_by_its_name() {
    run(async {
        let ([_, port], mut urls) = ports();
        urls[1] = format!("http://localhost:{}", port.local_addr().unwrap().port());
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let b = Node::start(B, &urls, &Setup::default(), only_pings);
        b.listen(port);
        a.connect(B).await;
    });
}

#[test]
fn the_sink_may_send_and_respond() {
    run(async {
        let (a, b) = pair(|_| Some(Reply::Stored)).await;
        a.connect_with(B, Reply::Stored).await;
        b.connect_with(A, Reply::Stored).await;
        assert_eq!((a.served.get(), b.served.get()), (1, 1));
    });
}

impl Node {
    async fn connect_with(&self, peer: protocol::NodeId, reply: Reply) {
        self.peers.send(peer, request(0, Request::Ping));
        assert!(matches!(self.event().await, Event::LinkUp(up) if up == peer));
        assert_eq!(self.reply().await, (0, reply));
    }
}

#[test]
fn peer_clocks_are_merged_unless_they_are_too_far_ahead() {
    run(async {
        let (ports, urls) = ports();
        let near = Setup { clock_ahead: 400_000, ..Setup::default() };
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let b = Node::start(B, &urls, &near, only_pings);
        let [_, port] = ports;
        b.listen(port);
        let before = a.facts.table.shared.clock.last();
        a.connect(B).await;
        assert!(a.facts.table.shared.clock.last() >= before + (300_000 << 12), "it was taken in");

        let (ports, urls) = super::world::ports();
        let far = Setup { clock_ahead: 60_000_000, ..Setup::default() };
        let a = Node::start(A, &urls, &Setup::default(), only_pings);
        let b = Node::start(B, &urls, &far, only_pings);
        let [_, port] = ports;
        b.listen(port);
        let before = a.facts.table.shared.clock.last();
        a.connect(B).await;
        assert!(a.facts.table.shared.clock.last() < before + (10_000_000 << 12), "it was not");
    });
}

#[test]
fn pings_measure_round_trip_and_clock_skew_of_a_peer() {
    run(async {
        let (a, _b) = pair(only_pings).await;
        a.connect(B).await;
        let seen = a.facts.observations(B);
        assert!(seen.rtt_micros() > 0, "it is there with the first reply");
        assert!(a.facts.skew_micros(B).unsigned_abs() < 1_000_000, "{seen:?}");
        assert_eq!((seen.links(), seen.incarnation()), (1, Some(Incarnation(101))));
        let (clock, now) = (&a.facts.table.shared.clock, clocks::now());
        clock.mark_durable(u64::MAX, 0);
        let ahead = protocol::Now { wall: now.wall + 60_000_000, ..now };
        assert_eq!(clock.issue(ahead), Err(NotIssued::Ahead));
        assert!(clock.issue(now).is_ok(), "it did not go on to that");
    });
}

#[test]
fn many_concurrent_reads_are_all_answered_once() {
    run(async {
        let (a, b) = pair(|request| match request {
            Request::Read { key, .. } => {
                let id: u64 = std::str::from_utf8(key).unwrap().parse().unwrap();
                let bytes = (id % 7) as usize * 9_000;
                Some(Reply::Found { record: record(id, bytes), authoritative: true })
            }
            _ => Some(Reply::Pong),
        })
        .await;
        a.connect(B).await;
        let mut open = std::collections::BTreeSet::new();
        let mut next = 1;
        while next < 3000 || !open.is_empty() {
            while next < 3000 && open.len() < 16 {
                let Message { id, .. } = read(next);
                a.fetch(B, id, 8 + (id % 7) as usize * 9_000);
                open.insert(id);
                next += 1;
            }
            let (id, reply) = a.reply().await;
            assert!(open.remove(&id), "{id} was answered twice");
            let bytes = (id % 7) as usize * 9_000;
            assert_eq!(reply, Reply::Found { record: record(id, bytes), authoritative: true });
        }
        assert_eq!(b.served.get(), 3000);
    });
}
