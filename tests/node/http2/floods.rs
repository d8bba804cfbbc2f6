//! HTTP/2 floods: the node ends each flood with bounded resources, and serves other clients
//! meanwhile.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use h2::Reason;

use super::client::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, Http2, PING, PRIORITY,
    RESET, Raw, SETTINGS, WINDOW_UPDATE, frame, head, literals, request,
};
use super::{metric, node};
use crate::process::pause_between_requests;
use crate::process::{Node, wait_until};

/// Limit on the bytes of a flood. The node must end a flood long before this limit; after its
/// GOAWAY it discards up to 64 MiB.
const FLOOD_LIMIT: usize = 256 << 20;

/// Permitted growth of the process in bytes: the resources of one connection, and the fragmentation
/// of the allocator.
const GROWTH: u64 = 48 << 20;

/// Sends `begin`, then the results of `pieces` until the connection ends; returns the received
/// frames. Asserts that other clients are served throughout, and that the node's memory grows by
/// less than `GROWTH`.
fn flood(node: &Node, begin: &[u8], mut pieces: impl FnMut(u32) -> Vec<u8> + Send) -> Vec<Frame> {
    let resident = node.resident();
    let mut raw = Raw::connect(node.address, &[]);
    raw.send(begin);
    let over = AtomicBool::new(false);
    let came = thread::scope(|scope| {
        let mut writing = raw.stream.try_clone().unwrap();
        let sent = scope.spawn(move || {
            let (mut sent, mut number) = (0, 0);
            while sent < FLOOD_LIMIT {
                let mut batch = Vec::new();
                while batch.len() < 16 << 10 {
                    batch.extend(pieces(number));
                    number += 1;
                }
                if writing.write_all(&batch).is_err() {
                    return sent;
                }
                sent += batch.len();
            }
            sent
        });
        let others = scope.spawn(|| {
            let (mut old, new) = (node.client(), Http2::connect(node.address));
            loop {
                assert_eq!(old.put("/v0/entity?id=other", b"v").status, 201);
                assert_eq!(new.get("/v0/entity?id=other").body, b"v");
                if over.load(Ordering::Relaxed) {
                    return;
                }
                pause_between_requests();
            }
        });
        let came = raw.rest();
        let sent = sent.join().unwrap();
        over.store(true, Ordering::Relaxed);
        others.join().unwrap();
        assert!(sent < FLOOD_LIMIT, "it was served to its end");
        came
    });
    let grown = node.resident().saturating_sub(resident);
    assert!(grown < GROWTH, "the node grew by {grown} bytes");
    came
}

/// Returns true if the error code of the last GOAWAY is ENHANCE_YOUR_CALM.
fn was_too_much(came: &[Frame]) -> bool {
    let last = came.iter().rfind(|frame| frame.kind == GOAWAY);
    last.is_some_and(|frame| frame.reason() == Reason::ENHANCE_YOUR_CALM)
}

fn id(number: u32) -> u32 {
    2 * number + 1
}

#[test]
fn streams_that_are_reset_at_once_end_the_connection() {
    let node = node();
    let came = flood(&node, &[], |number| {
        let cancel = u32::from(Reason::CANCEL).to_be_bytes();
        let (ask, reset) =
            (request(id(number), "GET", "/v0/entity?id=k"), frame(RESET, 0, id(number), &cancel));
        [ask, reset].concat()
    });
    assert!(was_too_much(&came), "{:?}", came.last());
    assert!(metric(&node, "kvorum_connections_malformed_total") >= 1);
}

#[test]
fn a_head_without_end_ends_the_connection() {
    let node = node();
    let begin = frame(HEADERS, 0, 1, &head("GET", "/v0/entity?id=k"));
    // CONTINUATION frames that are empty, small, and of the maximum length.
    for header in [vec![], literals(&[("x", "y")]), literals(&[("x", &"y".repeat(8000))]).repeat(2)]
    {
        let came = flood(&node, &begin, |_| frame(CONTINUATION, 0, 1, &header));
        assert!(was_too_much(&came), "{} bytes: {:?}", header.len(), came.last());
    }
}

#[test]
fn ten_thousand_streams_are_refused_but_for_a_hundred() {
    let node = node();
    let came = flood(&node, &[], |number| request(id(number), "PUT", "/v0/entity?id=k"));
    let reset = came.iter().filter(|frame| frame.kind == RESET);
    let refused = reset.filter(|frame| frame.reason() == Reason::REFUSED_STREAM).count();
    assert!(refused > 0 && refused < 10_000, "{refused}");
    assert!(was_too_much(&came), "{:?}", came.last());
    wait_until("the release of its memory", || metric(&node, "kvorum_request_body_bytes") == 0);
}

#[test]
fn frames_that_ask_for_nothing_end_the_connection() {
    let node = node();
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]);
    let ping = frame(PING, 0, 0, b"12345678");
    let window = frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    let priority = frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]);
    let unknown = frame(200, 0, 0, b"whatever this is");
    let empty = frame(DATA, 0, 1, b"");
    let padding = frame(DATA, 8, 1, &[&[255][..], &[0; 255]].concat());
    // Each flood is also sent while a request is in progress.
    let upload = request(1, "PUT", "/v0/entity?id=k");
    for piece in [settings, ping, window, priority, unknown, empty, padding] {
        for begin in [&[][..], &upload] {
            if begin.is_empty() && piece[8] == 1 {
                continue;
            }
            flood(&node, begin, |_| piece.clone());
        }
    }
    assert!(metric(&node, "kvorum_connections_malformed_total") >= 9);
}

#[test]
fn a_head_that_is_too_long_is_refused_and_one_that_unpacks_to_too_much_ends_the_connection() {
    let node = node();
    let mut raw = Raw::connect(node.address, &[]);
    let long = [head("GET", "/healthz"), literals(&[("x", &"y".repeat(16_000))])].concat();
    let (first, rest) = long.split_at(16_000);
    raw.send(&frame(HEADERS, END_STREAM, 1, first));
    raw.send(&frame(CONTINUATION, END_HEADERS, 1, rest));
    raw.until(HEADERS);
    raw.send(&request(3, "GET", "/healthz"));
    assert_eq!(raw.until(HEADERS).payload[0], 0x88, "the connection goes on");
    let client = Http2::connect(node.address);
    let with = |headers: usize| {
        let names = (0..headers).map(|number| format!("x{number}"));
        let head = names.fold(client.head("GET", "/healthz"), |head, name| head.header(name, ""));
        client.send(head.body(()).unwrap(), b"").unwrap().status.as_u16()
    };
    assert_eq!([with(100), with(101)], [200, 431]);

    // The first request puts one header of 4,000 bytes into the dynamic table. Each later byte
    // names this header: 62 is the index of the table's newest entry.
    let named = |streams: u32| {
        let mut bomb = vec![0x40, 1, b'x', 127, 0xa1, 0x1e];
        bomb.extend([b'y'; 4000]);
        let mut all =
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[head("GET", "/"), bomb].concat());
        for number in 1..streams {
            let block = [head("GET", "/"), vec![0x80 | 62; 16_000]].concat();
            all.extend(frame(HEADERS, END_HEADERS | END_STREAM, id(number), &block));
        }
        all
    };
    let came = flood(&node, &named(3), |number| {
        let block = [head("GET", "/"), vec![0x80 | 62; 16_000]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, id(number + 3), &block)
    });
    assert!(came.iter().any(|frame| frame.kind == GOAWAY), "{:?}", came.last());
}

#[test]
fn bodies_in_frames_of_a_byte_take_no_more_than_their_window() {
    // With so little memory for bodies, the node leaves most of them unread until memory is free.
    let node = Node::start(&["--sync", "never", "--memory", "64MiB"]);
    let mut begin = Vec::new();
    for number in 0..40 {
        let mut headers = head("PUT", "/v0/entity?id=k");
        headers.extend(literals(&[("content-length", "1000000")]));
        begin.extend(frame(HEADERS, END_HEADERS, id(number), &headers));
    }
    let came = flood(&node, &begin, |number| frame(DATA, 0, id(number % 40), b"x"));
    assert!(came.iter().any(|frame| frame.kind == GOAWAY), "{:?}", came.last());
}

#[test]
fn frames_in_any_order_and_of_any_content_harm_nobody() {
    let node = node();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut good = node.client();
    for number in 0..500 {
        let mut raw = Raw::connect(node.address, &[]);
        let mut bytes = Vec::new();
        for _ in 0..40 {
            let stream = random(8) as u32;
            bytes.extend(match random(4) {
                0 => request(stream, "PUT", "/v0/entity?id=any"),
                1 => request(stream | 1, "GET", "/v0/entity?id=any"),
                _ => {
                    let noise: Vec<u8> = (0..random(60)).map(|_| random(256) as u8).collect();
                    frame(random(11) as u8, random(256) as u8, stream, &noise)
                }
            });
        }
        if number % 2 == 0 {
            let at = random(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random(8);
        }
        // Sending may fail, because the node may close the connection before it has read all bytes.
        let _ = raw.stream.write_all(&bytes);
        drop(raw);
        assert_eq!(good.put("/v0/entity?id=good", b"v").status, 201, "{number}");
    }
    wait_until("the end of all", || metric(&node, "kvorum_connections") <= 2);
    wait_until("the release of its memory", || metric(&node, "kvorum_request_body_bytes") == 0);
}
