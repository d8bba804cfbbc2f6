//! Uploads that are refused before they are complete. Some clients discard an answer if a reset
//! follows at once. So the node reads the rest of the body, up to a bound.

use std::thread;

use h2::Reason;

use super::client::{
    DATA, END_HEADERS, END_STREAM, HEADERS, RESET, Raw, WINDOW_UPDATE, frame, head, literals,
    request,
};
use super::metric;
use crate::process::{Node, wait_until};

/// Bytes of a body that a client may send before it knows the node's settings (RFC 9113, 6.9.2).
const WINDOW: usize = (64 << 10) - 1;

const PIECE: usize = 16 << 10;

/// Sends the bytes of a body from `sent` to `length` as fast as the stream's window permits, then a
/// request on the stream `next`. Returns the number of resets of the stream before the answer to
/// that request.
fn upload(raw: &mut Raw, stream: u32, (sent, length): (usize, usize), next: u32) -> usize {
    let (mut window, mut left, mut resets) = (WINDOW - sent, length - sent, 0);
    while left > 0 {
        let piece = left.min(PIECE);
        if window >= piece {
            left -= piece;
            window -= piece;
            let flags = if left == 0 { END_STREAM } else { 0 };
            raw.send(&frame(DATA, flags, stream, &vec![7; piece]));
            continue;
        }
        let came = raw.next().unwrap();
        match came.kind {
            WINDOW_UPDATE if came.stream == stream => {
                window += u32::from_be_bytes(came.payload[..4].try_into().unwrap()) as usize;
            }
            RESET if came.stream == stream => return resets + 1,
            _ => {}
        }
    }
    // The answer on `next` arrives after all frames of this stream.
    raw.send(&request(next, "GET", "/healthz"));
    loop {
        let came = raw.next().unwrap();
        resets += usize::from((came.kind, came.stream) == (RESET, stream));
        if came.kind == HEADERS && came.stream == next {
            return resets;
        }
    }
}

#[test]
fn a_refused_upload_is_taken_to_its_end_and_its_stream_is_not_reset() {
    let node = Node::start(&["--sync", "never", "--max-value", "64KiB"]);
    let long = (1 << 20).to_string();
    let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
    // Reasons for the refusals: the announced length, the actual length, the origin of a foreign
    // page, an unknown path, and too many headers.
    let refused: [(&str, &[(&str, &str)]); 5] = [
        ("/v0/entity?id=k", &[("content-length", &long)]),
        ("/v0/entity?id=k", &[]),
        ("/v0/entity?id=k", &[("origin", "http://evil.example"), ("content-length", &long)]),
        ("/nowhere", &[("content-length", &long)]),
        ("/v0/entity?id=k", &many),
    ];
    let mut raw = Raw::connect(node.address, &[]);
    for ((path, headers), stream) in refused.into_iter().zip((1..).step_by(4)) {
        let block = [head("PUT", path), literals(headers)].concat();
        raw.send(&frame(HEADERS, END_HEADERS, stream, &block));
        assert_eq!(upload(&mut raw, stream, (0, 1 << 20), stream + 2), 0, "{path} {headers:?}");
    }
    assert_eq!(node.client().get("/v0/entity?id=k").status, 404);
    wait_until("the end of all streams", || metric(&node, "kvorum_connections") <= 2);
}

#[test]
fn a_refused_upload_without_end_is_reset_in_the_end() {
    let node = Node::start(&["--sync", "never", "--max-value", "64KiB"]);
    let mut raw = Raw::connect(node.address, &[]);
    raw.send(&request(1, "PUT", "/nowhere"));
    assert_eq!(upload(&mut raw, 1, (0, 1 << 30), 3), 1, "more comes than is taken");
    // The node resets the stream of a client that sends no body, after a timeout.
    let silent = [head("PUT", "/nowhere"), literals(&[("content-length", "1000000")])].concat();
    raw.send(&frame(HEADERS, END_HEADERS, 3, &silent));
    assert_eq!(raw.until(DATA).stream, 3, "it is answered at once");
    let reset = raw.until(RESET);
    assert_eq!((reset.stream, reset.reason()), (3, Reason::NO_ERROR));
    assert_eq!(node.client().get("/healthz").status, 200);
}

#[test]
fn an_upload_aborted_for_waiting_requests_is_answered_and_its_stream_is_not_reset() {
    const LONG: usize = 1 << 20;
    const SLOW_BYTES: &[u8] = b"slow";
    let node = Node::start(&["--memory", "64MiB", "--deadline", "10s"]);
    let mut raw = Raw::connect(node.address, &[]);
    let length = LONG.to_string();
    let uploads = [1, 3, 5, 7];
    for stream in uploads {
        let block = [
            head("PUT", &format!("/v0/entity?id={stream}")),
            literals(&[("content-length", &length)]),
        ]
        .concat();
        raw.send(&frame(HEADERS, END_HEADERS, stream, &block));
        raw.send(&frame(DATA, 0, stream, SLOW_BYTES));
    }
    wait_until("taking the memory", || {
        metric(&node, "kvorum_request_body_bytes") >= 2 * LONG as u64
    });
    thread::scope(|scope| {
        // This upload waits for memory, so the node aborts a slow upload.
        let put = scope.spawn(|| node.client().put("/v0/entity?id=k", &vec![7; LONG]).status);
        let aborted = raw.until(HEADERS).stream;
        assert!(uploads.contains(&aborted), "{aborted}");
        let answer = raw.until(DATA);
        let body = String::from_utf8(answer.payload).unwrap();
        assert!(body.contains("this slow upload was aborted"), "{body}");
        let resets = upload(&mut raw, aborted, (SLOW_BYTES.len(), LONG), 9);
        assert_eq!(resets, 0, "stream {aborted} was reset");
        assert_eq!(put.join().unwrap(), 201);
    });
}
