//! Rows 32 and 34 of docs/results/reliability.md: input that is not HTTP, and excessive input.

use kit::raw::Client;

use crate::process::Node;

/// Sends `bytes`; asserts that the server answers and closes the connection; returns the status.
fn send_malformed(node: &Node, bytes: impl AsRef<[u8]>) -> u16 {
    let mut client = node.client();
    client.send(bytes);
    let response = client.response();
    assert!(client.is_closed(), "left open after {}", response.status);
    response.status
}

fn put(headers: &str, body: &str) -> String {
    format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}")
}

fn put_chunked(body: &str) -> String {
    put("Transfer-Encoding: chunked\r\n", body)
}

fn assert_alive(node: &Node) {
    let mut client = node.client();
    assert_eq!(client.get("/v0/entity?id=k").status, 404, "nothing was stored");
    assert_eq!(client.put("/v0/entity?id=other", b"v").status, 201);
}

#[test]
fn ambiguous_or_malformed_lengths_are_refused() {
    let node = Node::start(&[]);
    for headers in [
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length: \r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunke\r\n",
        "Content-Length : 3\r\n",
        " Content-Length: 3\r\n",
        "Content-Length: 3\r\n folded\r\n",
        "Bad\0Name: 3\r\n",
        "NoColon\r\n",
    ] {
        assert_eq!(send_malformed(&node, put(headers, "abcd")), 400, "{headers:?}");
    }
    assert_alive(&node);
}

/// In HTTP/1.0 the end of the connection may mark the end of a body. If the node read such a body
/// as empty, a PUT would lose its value.
#[test]
fn a_put_by_http_1_0_without_a_length_overwrites_nothing() {
    let node = Node::start(&[]);
    assert_eq!(node.client().put("/v0/entity?id=other", b"kept").status, 201);
    let mut client = node.client();
    client.send("PUT /v0/entity?id=other HTTP/1.0\r\n\r\nlost");
    let response = client.response();
    assert_eq!((response.status, response.json()["outcome"].as_str()), (400, Some("none")));
    let detail = response.json()["detail"].to_string();
    assert!(detail.contains("Content-Length"), "{detail}");
    assert_eq!(node.client().get("/v0/entity?id=other").body(), b"kept");
    let mut client = node.client();
    client.send("PUT /v0/entity?id=other HTTP/1.0\r\nContent-Length: 3\r\n\r\nnew");
    assert_eq!(client.response().status, 201);
    assert_eq!(node.client().get("/v0/entity?id=other").body(), b"new");
}

/// If a write is refused before it begins, its client learns that nothing was written, whatever the
/// reason.
#[test]
fn a_write_that_was_not_begun_says_so() {
    let node = Node::start(&[]);
    for (method, target) in [
        ("PUT", "/v0/entity"),
        ("PUT", "/v0/entity?id=k&ttl=90"),
        ("PUT", "/v0/entity?id=k&foo=1"),
        ("PUT", "/v0/entity?id=a+b"),
        ("PUT", "/v0/entity?id=k&"),
        ("DELETE", "/v0/entity?id=k&ack=9"),
        ("POST", "/v0/entity?id=k&add=x"),
    ] {
        let refused = node.client().request(method, target, b"");
        let problem = refused.json();
        assert_eq!((refused.status, &problem["outcome"]), (400, &"none".into()), "{target}");
    }
    for cut in [
        put_chunked("5\r\nhello\r\nQQ\r\n"),
        put("Content-Length: 9\r\n", "hello"),
        put_chunked("5\r\nhel"),
    ] {
        let mut client = node.client();
        client.send(&cut);
        client.finish_sending();
        let refused = client.response();
        let problem = refused.json();
        assert_eq!((refused.status, &problem["outcome"]), (400, &"none".into()), "{cut:?}");
        let detail = problem["detail"].to_string();
        assert!(detail.contains("the body was cut off, or is malformed"), "{cut:?}: {detail}");
    }
    assert_alive(&node);
}

#[test]
fn malformed_chunks_are_refused() {
    let node = Node::start(&[]);
    for body in [
        "10000000000000000\r\nabc",
        "fffffffffffffffff\r\nabc",
        "+3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "g\r\nabc\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabcXX0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\n\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n",
    ] {
        assert_eq!(send_malformed(&node, put_chunked(body)), 400, "{body:?}");
    }
    assert_alive(&node);
}

/// A request with both Content-Length and Transfer-Encoding is either refused, or read as chunked,
/// answered once, and its connection closed. So the node never executes bytes that a front end took
/// for the next request.
#[test]
fn two_kinds_of_length_smuggle_nothing() {
    let node = Node::start(&[]);
    let smuggled = "PUT /v0/entity?id=smuggled HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Length: 1\r\n\r\nx";
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let mut client = node.client();
        client.send(put(headers, &format!("1\r\nv\r\n0\r\n\r\n{smuggled}")));
        let response = client.response();
        assert!(matches!(response.status, 201 | 400), "{}", response.status);
        assert!(response.closes() || response.status == 400);
        assert!(client.is_closed(), "a second answer came");
    }
    assert_eq!(node.client().get("/v0/entity?id=smuggled").status, 404);
}

#[test]
fn bytes_that_are_not_a_request_are_refused() {
    let node = Node::start(&[]);
    for head in [
        "GARBAGE\r\n\r\n",
        "GET  /v0/entity?id=k HTTP/1.1\r\n\r\n",
        "GET /v0/entity?id=k HTTP/1.2\r\n\r\n",
        "GET /v0/entity?id=k HTTP/2.0\r\n\r\n",
        "GET /v0/entity?id=k y HTTP/1.1\r\n\r\n",
        "G\0T /v0/entity?id=k HTTP/1.1\r\n\r\n",
        "GET /v0/entity?id=\x01 HTTP/1.1\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}",
    ] {
        assert_eq!(send_malformed(&node, head), 400, "{head:?}");
    }
    let mut client = node.client();
    client.send("GET /v0/entity?id=\u{fc} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let status = client.response().status;
    assert!(matches!(status, 400 | 404), "{status}");
    assert_alive(&node);
}

#[test]
fn heads_over_the_limit_are_refused() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let long = "x".repeat(15 * 1024);
    client.send(format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"));
    assert_eq!(client.response().status, 404, "15 KiB are fine");
    let long = "x".repeat(17 * 1024);
    for head in [
        format!("GET /v0/entity?id=k HTTP/1.1\r\nX: {long}\r\n\r\n"),
        format!("GET /v0/entity?id={long} HTTP/1.1\r\n\r\n"),
        format!("GET /v0/entity?id=k HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(3_000)),
        format!("GET /v0/entity?id=k HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101)),
    ] {
        let status = send_malformed(&node, head);
        assert!(matches!(status, 414 | 431), "{status}");
    }
    assert_alive(&node);
}

/// Endless heads, bodies and chunks are refused without using much memory.
#[test]
fn endless_input_takes_no_memory() {
    let node = Node::start(&["--memory", "64MiB", "--max-value", "64KiB"]);
    let block = "x".repeat(64 * 1024);
    let endless = |start: &str, block: &str, expected: &[u16]| {
        let mut client = node.client();
        client.send(start);
        send_until_refused(&mut client, block.as_bytes());
        // If a client sends far more than the node discards, a reset of the connection may destroy
        // the answer.
        if let Ok(response) = client.try_response() {
            assert!(expected.contains(&response.status), "{}", response.status);
        }
    };
    endless("GET /v0/entity?id=", &block, &[414, 431]);
    endless("GET / HTTP/1.1\r\nX: ", &block, &[431]);
    endless("GET / HTTP/1.1\r\n", &"X: y\r\n".repeat(10_000), &[431]);
    endless(&put("Content-Length: 99999999999\r\n", ""), &block, &[413]);
    endless(&put_chunked(""), &format!("10000\r\n{block}\r\n"), &[413]);
    endless(&put_chunked(""), &"1\r\nx\r\n".repeat(10_000), &[413]);
    endless(&put_chunked("5;"), &block, &[400]);
    endless(&put_chunked("0\r\n"), &"X: y\r\n".repeat(10_000), &[400]);
    assert_alive(&node);
    let resident = node.resident();
    assert!(resident < (64 + 64) << 20, "{} MiB resident", resident >> 20);
}

fn send_until_refused(client: &mut Client, block: &[u8]) {
    use std::io::Write;
    for _ in 0..2_000 {
        if client.stream.write_all(block).is_err() {
            return;
        }
    }
    panic!("took 125 MiB and more without end");
}
