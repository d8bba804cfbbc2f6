//! HTTP/2 clients that are slow on purpose: the node reclaims their resources, and serves other
//! clients meanwhile.

use std::time::{Duration, Instant};

use h2::Reason;

use crate::http2::client::{
    DATA, END_STREAM, HEADERS, PING, RESET, Raw, WINDOW_UPDATE, frame, request,
};
use crate::http2::metric;
use crate::process::{Node, wait_until};

/// Number of concurrent streams.
const STREAMS: u32 = 20;

fn ids() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|number| 2 * number + 1)
}

/// One client never opens its flow-control windows, and another client never ends its uploads. The
/// node resets each of their streams, and their connections stay usable.
#[test]
fn streams_that_their_client_leaves_waiting_are_reset_and_others_are_served() {
    let node = Node::start(&["--sync", "never"]);
    let mut good = node.client();
    assert_eq!(good.put("/v0/entity?id=long", &[7; 500_000]).status, 201);
    assert_eq!(good.put("/v0/entity?id=short", b"v").status, 201);
    // 4 is SETTINGS_INITIAL_WINDOW_SIZE.
    let mut closed = Raw::connect(node.address, &[(4, 0)]);
    let mut silent = Raw::connect(node.address, &[]);
    for stream in ids() {
        closed.send(&request(stream, "GET", "/v0/entity?id=long"));
        silent.send(&request(stream, "PUT", "/v0/entity?id=silent"));
        silent.send(&frame(DATA, 0, stream, b"v"));
    }
    let begun = Instant::now();
    for (slow, reset) in [(&mut silent, Reason::CANCEL), (&mut closed, Reason::CANCEL)] {
        for _ in ids() {
            let frame = slow.until(RESET);
            assert_eq!(frame.reason(), reset);
        }
    }
    assert!(begun.elapsed() > Duration::from_secs(9), "after {:?}", begun.elapsed());
    assert_eq!(metric(&node, "kvorum_connections_timed_out_total"), u64::from(2 * STREAMS));
    assert_eq!(good.get("/v0/entity?id=silent").status, 404);
    let next = 2 * STREAMS + 1;
    closed.send(&request(next, "GET", "/v0/entity?id=short"));
    closed.send(&frame(WINDOW_UPDATE, 0, next, &[0, 0, 0, 9]));
    assert_eq!(closed.until(DATA).payload, b"v");
    silent.send(&request(next, "PUT", "/v0/entity?id=loud"));
    silent.send(&frame(DATA, END_STREAM, next, b"v"));
    assert_eq!(silent.until(HEADERS).stream, next);
    drop((closed, silent));
    wait_until("memory to come back", || metric(&node, "kvorum_response_body_bytes") == 0);
}

/// While other requests wait for memory for their answers, the node resets a stream whose client
/// does not open its window, and closes a connection whose client reads nothing.
#[test]
fn answers_that_nobody_takes_give_way_to_others() {
    // With this memory, all answers together have 2 MiB.
    let node = Node::start(&["--sync", "never", "--memory", "64MiB"]);
    let value = vec![7; 256 << 10];
    assert_eq!(node.client().put("/v0/entity?id=long", &value).status, 201);
    const MOST: u32 = (1 << 31) - 1;
    for window in [0, MOST] {
        let mut holds = Raw::connect(node.address, &[(4, window)]);
        if window == MOST {
            // The client opens the window of the connection too, so that the answers exceed the
            // buffers of socket and kernel.
            holds.send(&frame(WINDOW_UPDATE, 0, 0, &[0x70, 0, 0, 0]));
        }
        for stream in (1..180).step_by(2) {
            holds.send(&request(stream, "GET", "/v0/entity?id=long"));
        }
        wait_until("the memory to be taken", || {
            metric(&node, "kvorum_response_body_bytes") > (2 << 20) - (256 << 10) - 1
        });
        wait_until("somebody else's turn", || {
            node.client().get("/v0/entity?id=long").status == 200
        });
        assert!(metric(&node, "kvorum_transfers_aborted_total") > 0);
        if window == 0 {
            assert_eq!(holds.until(RESET).reason(), Reason::CANCEL);
        }
    }
}

/// The node closes a connection whose socket stays full, and a connection whose client sends only
/// pings.
#[test]
fn a_connection_that_takes_nothing_is_given_up() {
    let node = Node::start(&["--sync", "never", "--deadline", "1s"]);
    assert_eq!(node.client().put("/v0/entity?id=long", &[7; 1 << 20]).status, 201);
    // The client opens as many streams as are permitted, and reads no answer.
    let mut full = Raw::connect(node.address, &[(4, (1 << 31) - 1)]);
    full.send(&frame(WINDOW_UPDATE, 0, 0, &[0x70, 0, 0, 0]));
    for stream in ids() {
        full.send(&request(stream, "GET", "/v0/entity?id=long"));
    }
    // A client that never sends a request has the timeout of a request head.
    let mut pings = Raw::connect(node.address, &[]);
    pings.send(&frame(PING, 0, 0, b"12345678"));
    wait_until("both ends", || metric(&node, "kvorum_connections_timed_out_total") >= 2);
    wait_until("memory to come back", || metric(&node, "kvorum_response_body_bytes") == 0);
    pings.rest();
}
