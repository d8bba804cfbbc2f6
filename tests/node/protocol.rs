//! Less common but valid uses of HTTP/1.1 by clients.

use crate::process::Node;

const PUT_CHUNKED: &str =
    "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_connection_serves_many_requests() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for number in 0..100 {
        let value = number.to_string();
        assert_eq!(client.put("/v0/entity?id=k", value.as_bytes()).status, 201);
        assert_eq!(client.get("/v0/entity?id=k").body(), value.as_bytes());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let mut requests = String::new();
    for number in 0..200 {
        let value = format!("value {number}");
        let length = value.len();
        requests += &format!(
            "PUT /v0/entity?id=k{number} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Length: {length}\r\n\r\n{value}\
             GET /v0/entity?id=k{number} HTTP/1.1\r\nHost: localhost\r\n\r\n\
             GET /v0/nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
    }
    client.send(requests);
    for number in 0..200 {
        assert_eq!(client.response().status, 201);
        assert_eq!(client.response().body(), format!("value {number}").into_bytes());
        assert_eq!(client.response().status, 400);
    }
}

#[test]
fn http_1_0_is_answered_in_kind_and_closed() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.send("PUT /v0/entity?id=k HTTP/1.0\r\nContent-Length: 1\r\n\r\nv");
    let response = client.response();
    assert_eq!((response.version.as_str(), response.status), ("HTTP/1.0", 201));
    assert!(client.is_closed());
    let mut client = node.client();
    client.send("GET /v0/entity?id=k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(client.response().body(), b"v");
    client.send("GET /v0/entities?start=a HTTP/1.0\r\n\r\n");
    let range = client.response();
    assert_eq!(range.header("transfer-encoding"), None, "1.0 knows no chunks");
    assert_eq!(range.body(), b"k\nv");
}

#[test]
fn a_connection_close_header_ends_the_connection() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.send("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(client.response().closes());
    assert!(client.is_closed());
}

#[test]
fn a_client_that_only_stopped_sending_gets_its_answers() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.send(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv\
         GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    client.finish_sending();
    assert_eq!(client.response().status, 201);
    assert_eq!(client.response().body(), b"v");
    assert!(client.is_closed());
}

#[test]
fn chunked_uploads_are_stored_whole() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.send(PUT_CHUNKED);
    for piece in
        ["5\r\nhel", "lo\r\n", "1;name=\"ext\"\r\n \r", "\n00005\r\nworld\r\n", "0\r\n\r\n"]
    {
        client.send(piece);
    }
    assert_eq!(client.response().status, 201);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"hello world");
    client.send(PUT_CHUNKED);
    client.send("0\r\nTrailer: ignored\r\n\r\n");
    assert_eq!(client.response().status, 201);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"", "no chunk is an empty value");
    client.send(PUT_CHUNKED);
    for _ in 0..500 {
        client.send(format!("400\r\n{}\r\n", "x".repeat(1024)));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 201);
    assert_eq!(client.get("/v0/entity?id=k").body().len(), 500 * 1024);
}

#[test]
fn expect_100_continue_is_answered_before_the_body() {
    let node = Node::start(&["--max-value", "1KiB"]);
    let mut client = node.client();
    let put = |length: usize| {
        format!(
            "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    client.send(put(3));
    assert_eq!(client.response().status, 100);
    client.send("abc");
    assert_eq!(client.response().status, 201);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"abc", "the connection goes on");
    client.send(put(1025));
    let refused = client.response();
    assert_eq!((refused.status, refused.closes()), (413, true), "without asking for the body");
    assert!(client.is_closed());
}

#[test]
fn a_get_with_a_body_is_a_get() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"v");
    for len in [1, 10_000, 60_000] {
        let got = client.request("GET", "/v0/entity?id=k", &vec![b'x'; len]);
        assert_eq!((got.status, got.body(), got.closes()), (200, b"v".to_vec(), false));
    }
    let chunked = "GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\
                   Transfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{chunked}3\r\nabc\r\n0\r\n\r\n"));
    assert_eq!(client.response().body(), b"v");
    let got = client.request("GET", "/v0/entity?id=k", &vec![b'x'; 1 << 20]);
    assert_eq!((got.body(), got.closes()), (b"v".to_vec(), true), "more than is worth reading");
    let refused = node.client().request("PATCH", "/v0/entity?id=k", &vec![b'x'; 30_000]);
    assert_eq!((refused.status, refused.closes()), (405, false));
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let node = Node::start(&["--max-value", "1KiB"]);
    let mut client = node.client();
    let body = vec![b'x'; 8 << 20];
    let refused = client.put("/v0/entity?id=k", &body);
    assert_eq!((refused.status, refused.closes()), (413, true));
    let mut client = node.client();
    client.send(PUT_CHUNKED);
    for _ in 0..64 {
        client.send([format!("{:x}\r\n", 1 << 16).as_bytes(), &body[..1 << 16], b"\r\n"].concat());
    }
    let refused = client.response();
    assert_eq!((refused.status, refused.closes()), (413, true));
}

#[test]
fn absolute_targets_are_understood() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"v");
    client.send("GET http://localhost:1/v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().body(), b"v");
}
