//! Row 33 of docs/results/reliability.md in its short form: clients that are slow on purpose.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::raw::Client;

use crate::http2::client::{Raw, WINDOW_UPDATE, frame, request};
use crate::http2::metric;
use crate::process::{Node, wait_until};

/// Number of clients of each kind of slowness.
const EACH: usize = 60;

/// The id of an HTTP/2 setting (RFC 9113, section 6.5.2).
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Timeout for the node to disconnect slow clients. The documentation promises 15 s; the rest is a
/// margin for a busy machine.
const REAPED_WITHIN: Duration = Duration::from_secs(20);

/// Sends a byte on each connection every half second. Returns true once all connections are closed,
/// and false if some are open after `REAPED_WITHIN`.
fn trickle(mut clients: Vec<Client>, byte: &'static [u8]) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < REAPED_WITHIN {
        clients.retain_mut(|client| client.stream.write_all(byte).is_ok());
        if clients.is_empty() {
            return true;
        }
        thread::sleep(Duration::from_millis(500));
    }
    false
}

fn slow_clients(node: &Node, start: &str) -> Vec<Client> {
    (0..EACH)
        .map(|_| {
            let mut client = node.client();
            client.send(start);
            client
        })
        .collect()
}

/// Reads ranges at 8 KB/s, one after another, until `is_over`.
fn read_ranges_slowly(node: &Node, is_over: &AtomicBool) {
    let request =
        "GET /v0/entities?start=k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    while !is_over.load(Ordering::Relaxed) {
        let mut client = node.client();
        client.send(request);
        let mut piece = [0; 4096];
        while !is_over.load(Ordering::Relaxed)
            && client.stream.read(&mut piece).is_ok_and(|length| length > 0)
        {
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Reads 20 ranges at once over HTTP/2, each at 8 KB/s, until `is_over`. Opens another connection
/// every 10 s: after 13 s the node may reset ranges of a client that a busy machine slows down.
fn read_ranges_slowly_by_http2(node: &Node, is_over: &AtomicBool) {
    let window = 4096_u32.to_be_bytes();
    while !is_over.load(Ordering::Relaxed) {
        let mut raw = Raw::connect(node.address, &[(INITIAL_WINDOW_SIZE, 0)]);
        let streams: Vec<u32> = (1..41).step_by(2).collect();
        for stream in &streams {
            raw.send(&request(*stream, "GET", "/v0/entities?start=k"));
        }
        for _ in 0..20 {
            let updates = streams.iter().map(|stream| frame(WINDOW_UPDATE, 0, *stream, &window));
            let is_written = raw.stream.write_all(&updates.collect::<Vec<_>>().concat()).is_ok();
            if !is_written || is_over.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// While ranges are refused for lack of memory, the node aborts ranges whose clients read less than
/// 16 KB/s. Without refusals, 5 KB/s suffice.
fn check_that_slow_ranges_give_way(by_http2: bool) {
    // With this memory, 16 ranges can be read at once.
    let node = Node::start(&["--sync", "never", "--memory", "64MiB"]);
    let mut good = node.client();
    for number in 0..2400 {
        let target = format!("/v0/entity?id=k{number:04}");
        assert_eq!(good.put(&target, &vec![b'v'; 10_000]).status, 201);
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (node, is_over) = (&node, &is_over);
        if by_http2 {
            scope.spawn(move || read_ranges_slowly_by_http2(node, is_over));
        } else {
            for _ in 0..20 {
                scope.spawn(move || read_ranges_slowly(node, is_over));
            }
        }
        let list = || node.client().get("/v0/entities?start=none").status;
        wait_until("a refused range", || list() == 503);
        wait_until("the abort of a slow range", || {
            list();
            metric(node, "kvorum_transfers_aborted_total") > 0
        });
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn slowly_read_ranges_give_way_to_other_ranges() {
    check_that_slow_ranges_give_way(false);
}

#[test]
fn ranges_slowly_read_by_http2_give_way_to_other_ranges() {
    check_that_slow_ranges_give_way(true);
}

/// In HTTP/1.0 the end of the connection marks the end of a range, so only a reset shows that the
/// range is incomplete.
#[test]
fn a_range_cut_off_by_a_stop_ends_with_a_reset() {
    let node = Node::start(&["--sync", "never"]);
    let mut good = node.client();
    for number in 0..24 {
        let target = format!("/v0/entity?id=k{number:02}");
        assert_eq!(good.put(&target, &vec![b'v'; 1 << 20]).status, 201);
    }
    let mut reader = node.client();
    reader.send("GET /v0/entities?start=k HTTP/1.0\r\n\r\n");
    assert_eq!(reader.read_head().unwrap().status, 200);
    node.signal(rustix::process::Signal::TERM);
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("still busy after"), "{log}");
    let end = reader.rest().map(|rest| rest.len()).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn slow_clients_are_reaped_and_do_not_hold_up_others() {
    let node = Node::start(&["--sync", "never"]);
    let mut good = node.client();
    assert_eq!(good.put("/v0/entity?id=large", &vec![b'v'; 100_000]).status, 201);
    let silent = slow_clients(&node, "");
    let heads = slow_clients(&node, "GET /v0/entity?id=large HTTP/1.1\r\nX: ");
    let put = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx";
    let bodies = slow_clients(&node, put);
    let get = "GET /v0/entity?id=large HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let readers = slow_clients(&node, &get.repeat(200));
    let begun = Instant::now();
    thread::scope(|scope| {
        let heads = scope.spawn(|| trickle(heads, b"x"));
        let bodies = scope.spawn(|| trickle(bodies, b"x"));
        let silent = scope.spawn(|| silent.into_iter().all(|mut client| client.is_closed()));
        let serve = scope.spawn(|| {
            while begun.elapsed() < Duration::from_secs(3) {
                assert_eq!(good.put("/v0/entity?id=other", b"v").status, 201);
                assert_eq!(good.get("/v0/entity?id=other").body(), b"v");
            }
        });
        serve.join().unwrap();
        assert!(heads.join().unwrap(), "slow heads were left");
        assert!(bodies.join().unwrap(), "slow bodies were left");
        assert!(silent.join().unwrap(), "silent connections were left");
    });
    assert!(begun.elapsed() < REAPED_WITHIN + Duration::from_secs(5));
    let mut good = node.client();
    crate::process::wait_until("reaping those who do not read", || {
        let text = String::from_utf8(good.get("/metrics").body()).unwrap();
        let reaped =
            text.lines().find(|line| line.starts_with("kvorum_connections_timed_out")).unwrap();
        reaped.ends_with(&format!(" {}", 4 * EACH))
    });
    drop(readers);
}
