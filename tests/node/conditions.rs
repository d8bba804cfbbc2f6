//! The conditions of a request are honored or refused, but never ignored. A request with an
//! ambiguous head is refused.

use kit::raw::{Client, Response};

use crate::process::Node;

fn ask(client: &mut Client, method: &str, target: &str, headers: &str, body: &str) -> Response {
    let length = body.len();
    client.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\
         \r\n{body}"
    ));
    if method == "HEAD" { client.head_response() } else { client.response() }
}

const CONDITIONS: [&str; 4] = [
    "If-Match: 0\r\n",
    "If-None-Match: \"0\"\r\n",
    "If-Range: \"0\"\r\n",
    "If-Something-New: 1\r\n",
];

#[test]
fn a_write_under_a_condition_that_is_not_known_is_refused() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"old");
    for condition in CONDITIONS {
        for method in ["PUT", "DELETE"] {
            let refused = ask(&mut client, method, "/v0/entity?id=k", condition, "new");
            assert_eq!(refused.status, 400, "{method} {condition}");
            assert_eq!(refused.json()["outcome"], "none", "{method} {condition}");
        }
        for target in ["/v0/entities?start=a", "/metrics", "/v0/status", "/ui", "/healthz"] {
            let refused = ask(&mut client, "GET", target, condition, "");
            assert_eq!(refused.status, 400, "{target} {condition}");
        }
    }
    for method in ["GET", "HEAD"] {
        for target in ["/v0/entity?id=k", "/v0/entities?start=a", "/metrics", "/v0/status", "/ui"] {
            client.send(format!(
                "{method} {target} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: once\r\n\r\n"
            ));
            let refused = if method == "HEAD" { client.head_response() } else { client.response() };
            assert_eq!(refused.status, 400, "{method} {target}");
        }
    }
    assert_eq!(client.get("/v0/entity?id=k").body(), b"old");
}

#[test]
fn a_value_is_sent_again_only_if_it_has_changed() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let first = client.put("/v0/entity?id=k", b"one").header("etag").unwrap().to_owned();
    for method in ["GET", "HEAD"] {
        for tags in [first.clone(), format!("\"x\", W/{first}"), "*".to_owned()] {
            let since = "If-Modified-Since: Sat, 29 Oct 1994 19:43:31 GMT\r\n";
            let headers = format!("If-None-Match: {tags}\r\n{since}");
            client.send(format!(
                "{method} /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
            ));
            let answer = client.head_response();
            assert_eq!((answer.status, answer.header("etag")), (304, Some(first.as_str())));
        }
    }
    let header = format!("If-None-Match: {first}\r\n");
    client.put("/v0/entity?id=k", b"two");
    let changed = ask(&mut client, "GET", "/v0/entity?id=k", &header, "");
    assert_eq!((changed.status, changed.body()), (200, b"two".to_vec()));
    let absent = ask(&mut client, "GET", "/v0/entity?id=absent", "If-None-Match: *\r\n", "");
    assert_eq!(absent.status, 404);
    for empty in ["If-None-Match:\r\n", "If-None-Match: , ,\r\n"] {
        let refused = ask(&mut client, "GET", "/v0/entity?id=k", empty, "");
        assert_eq!(refused.status, 400, "{empty}");
    }
    let nonsense = ask(&mut client, "GET", "/v0/entity?id=k", "If-None-Match: x\r\n", "");
    assert_eq!(nonsense.status, 400);
    for condition in [CONDITIONS[0], CONDITIONS[3]] {
        let refused = ask(&mut client, "GET", "/v0/entity?id=k", condition, "");
        assert_eq!(refused.status, 400, "{condition}");
    }
}

/// A server may answer a request for a part with the whole value (RFC 9110, 14.2), but must not
/// store a part as the whole value.
#[test]
fn parts_of_values_are_read_as_a_whole_and_not_written() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"0123456789");
    for headers in ["Range: bytes=2-3\r\n", "Range: bytes=2-3\r\nIf-Range: \"x\"\r\n"] {
        let whole = ask(&mut client, "GET", "/v0/entity?id=k", headers, "");
        assert_eq!((whole.status, whole.body()), (200, b"0123456789".to_vec()));
    }
    let part = "Content-Range: bytes 2-3/10\r\n";
    let refused = ask(&mut client, "PUT", "/v0/entity?id=k", part, "xx");
    assert_eq!((refused.status, refused.json()["outcome"].as_str()), (400, Some("none")));
    assert_eq!(client.get("/v0/entity?id=k").body(), b"0123456789");
}

#[test]
fn a_coding_other_than_chunked_is_not_stored() {
    let node = Node::start(&[]);
    let body = "1\r\nx\r\n0\r\n\r\n";
    for coding in [
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
    ] {
        let mut client = node.client();
        client
            .send(format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{coding}\r\n{body}"));
        let refused = client.response();
        assert!(matches!(refused.status, 400 | 501), "{coding}: {}", refused.status);
        assert!(client.is_closed(), "{coding}");
    }
    let mut client = node.client();
    client.send(format!(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\
         \r\n{body}"
    ));
    let refused = client.response();
    assert_eq!((refused.status, refused.json()["outcome"].as_str()), (501, Some("none")));
    let mut client = node.client();
    assert_eq!(client.get("/v0/entity?id=k").status, 404, "nothing was stored");
    let good = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n";
    client.send(format!("{good}\r\n{body}"));
    assert_eq!(client.response().status, 201);
}

#[test]
fn a_fragment_is_refused_and_not_cut_off() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for (method, target) in [
        ("PUT", "/v0/entity?id=a#b"),
        ("PUT", "/v0/entity?id=a#b&ack=1"),
        ("DELETE", "/v0/entity?id=a#"),
        ("GET", "/v0/entities?start=a#b"),
        ("GET", "/#/v0/entity?id=a"),
    ] {
        let refused = ask(&mut client, method, target, "", "v");
        assert_eq!(refused.status, 400, "{target}");
        let said = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(said.contains("%23"), "{target}: {said}");
    }
    let mut client = node.client();
    client.send("GET /v0/entity?id=a");
    client.send("#b HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status, 400, "in two pieces");
    assert_eq!(client.get("/v0/entity?id=a").status, 404, "nothing was stored");
    let put = ask(&mut client, "PUT", "/v0/entity?id=a%23b", "X-Note: #\r\n", "# is fine here");
    assert_eq!(put.status, 201);
    assert_eq!(client.get("/v0/entities?start=a").chunks, [b"a#b\n# is fine here"]);
}

#[test]
fn a_missing_or_second_host_header_is_refused() {
    let node = Node::start(&[]);
    let get = |headers: &str, version: &str| {
        let mut client = node.client();
        client.send(format!("GET /healthz HTTP/{version}\r\n{headers}\r\n"));
        client.response().status
    };
    assert_eq!(get("Host: localhost\r\n", "1.1"), 200);
    assert_eq!(get("", "1.1"), 400);
    assert_eq!(get("Host: localhost\r\nHost: localhost\r\n", "1.1"), 400);
    assert_eq!(get("Host: localhost\r\nHost: localhost\r\n", "1.0"), 400);
    assert_eq!(get("", "1.0"), 200, "HTTP/1.0 knows no Host");
}

#[test]
fn the_head_of_an_empty_value_tells_its_length() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"");
    let head = client.request("HEAD", "/v0/entity?id=k", b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("0")));
    let got = client.get("/v0/entity?id=k");
    assert_eq!((got.header("content-length"), got.body()), (Some("0"), vec![]));
}
