//! HTTP/2 on a node with few client slots. Each stream of a connection after the first one needs
//! its own slot. The stream waits for the slot as a connection does, and releases it.

use h2::Reason;

use super::client::{
    DATA, END_STREAM, GOAWAY, HEADERS, Http2, RESET, Raw, SETTINGS, frame, request,
};
use super::metric;
use crate::process::{Node, wait_until};

const PLACES: usize = 6;

fn node() -> Node {
    let places = PLACES.to_string();
    Node::start(&["--sync", "never", "--connections", &places, "--loops", "1"])
}

/// Opens a connection with `streams` uploads whose bodies are incomplete.
fn busy(node: &Node, streams: usize) -> Raw {
    let mut raw = Raw::connect(node.address, &[]);
    for stream in 0..streams as u32 {
        raw.send(&request(2 * stream + 1, "PUT", "/v0/entity?id=busy"));
        raw.send(&frame(DATA, 0, 2 * stream + 1, b"v"));
    }
    raw
}

fn is_served(node: &Node) -> bool {
    node.client().put("/v0/entity?id=new", b"v").status == 201
}

#[test]
fn a_connection_has_half_of_the_places_at_most() {
    let node = node();
    let mut raw = Raw::connect(node.address, &[]);
    let settings = raw.until(SETTINGS).payload;
    let most = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).unwrap();
    assert_eq!(most[2..], (PLACES as u32 / 2).to_be_bytes());
}

#[test]
fn streams_take_places_wait_for_them_and_give_them_back() {
    let node = node();
    let (mut first, mut second) = (busy(&node, 3), busy(&node, 3));
    wait_until("all places to be taken", || !is_served(&node));
    // The node serves a probe without a slot, and then closes its connection with GOAWAY.
    let probe = Http2::connect(node.address);
    assert_eq!(probe.get("/healthz").status, 200);
    assert!(probe.ends_well());
    // A request that waits for a slot gets one as soon as it is free.
    let mut waiting = Raw::connect(node.address, &[]);
    waiting.send(&request(1, "PUT", "/v0/entity?id=waits"));
    waiting.send(&frame(DATA, END_STREAM, 1, b"v"));
    first.send(&frame(DATA, END_STREAM, 1, b"v"));
    assert_eq!(first.until(HEADERS).payload[0] & 0x80, 0, "201 is in no table");
    let answer = waiting.until(HEADERS);
    assert_eq!(answer.stream, 1);
    second.send(&frame(DATA, END_STREAM, 3, b"v"));
    second.until(HEADERS);
    drop((first, second, waiting));
    wait_until("all places to be free", || {
        let clients: Vec<_> = (0..PLACES).map(|_| node.client()).collect();
        clients.into_iter().all(|mut client| client.put("/v0/entity?id=k", b"v").status == 201)
    });
}

#[test]
fn reserve_clients_of_http_2_return_a_slot_once() {
    let node = node();
    for round in 0..20 {
        let mut taken = busy(&node, 3);
        let more = busy(&node, 2);
        let mut last = node.client();
        assert_eq!(last.put("/v0/entity?id=k", b"v").status, 201, "{round}");
        last.send("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nv");
        // A connection without a slot sends two requests at once, at the moment in which a slot
        // becomes free.
        let mut reserve = Raw::connect(node.address, &[]);
        let both = [request(1, "GET", "/v0/entity?id=k"), request(3, "GET", "/v0/entity?id=k")];
        reserve.send(&both.concat());
        taken.send(&frame(DATA, END_STREAM, 1, b"v"));
        taken.until(HEADERS);
        let mut answers = 0;
        while answers < 2 {
            let frame = reserve.next().unwrap();
            answers += usize::from(frame.kind == HEADERS || frame.kind == RESET);
        }
        drop((taken, more, last, reserve));
        wait_until("the end of all", || metric(&node, "kvorum_connections") <= 1);
    }
    // If slots had been lost or duplicated, fewer or more than `PLACES` clients would get one.
    let _busy: Vec<_> = (0..PLACES)
        .map(|_| {
            let mut client = node.client();
            client.send(
                "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nv",
            );
            client
        })
        .collect();
    wait_until("all places to be taken", || !is_served(&node));
}

#[test]
fn an_idle_connection_makes_room_and_is_told_so() {
    let node = node();
    let mut idle: Vec<_> = (0..PLACES)
        .map(|_| {
            let mut raw = Raw::connect(node.address, &[]);
            raw.send(&request(1, "GET", "/v0/entity?id=k"));
            raw.until(HEADERS);
            raw
        })
        .collect();
    let mut next = 3;
    wait_until("room for a new one", || {
        for raw in &mut idle[1..] {
            raw.send(&request(next, "GET", "/v0/entity?id=k"));
            raw.until(HEADERS);
        }
        next += 2;
        is_served(&node)
    });
    assert!(metric(&node, "kvorum_connections_evicted_total") > 0);
    let told = |raw: &mut Raw| raw.rest().iter().any(|frame| frame.kind == GOAWAY);
    assert!(told(&mut idle[0]), "the one that was idle for longest");
}

#[test]
fn streams_that_find_no_room_at_all_are_refused_and_can_be_sent_again() {
    let node = node();
    let (first, second) = (busy(&node, 3), busy(&node, 3));
    wait_until("all places to be taken", || !is_served(&node));
    // These connections have no slot. They open streams that need none, and whose bodies the node
    // does not read.
    let keeps_waiting = |_| {
        let mut raw = Raw::connect(node.address, &[]);
        let streams = [1, 3, 5].map(|stream| request(stream, "PUT", "/healthz"));
        raw.send(&streams.concat());
        raw
    };
    let mut crowd: Vec<_> = (0..33).map(keeps_waiting).collect();
    let refused = crowd.last_mut().unwrap().until(RESET);
    assert_eq!(refused.reason(), Reason::REFUSED_STREAM);
    drop((crowd, first, second));
    wait_until("room", || is_served(&node));
    let again = Http2::connect(node.address);
    assert_eq!(again.put("/v0/entity?id=again", b"v").status, 201);
}
