//! HTTP/2, chosen by ALPN or with prior knowledge: the same contract as over HTTP/1.1, many
//! streams, slow and broken streams, and the end of connections.

pub(crate) mod client;
mod floods;
mod places;
mod refused;

use std::net::Shutdown;

use bytes::Bytes;
use h2::Reason;
use hyper::Request;
use rustix::process::Signal;

use crate::process::{Node, wait_until};
use crate::tls::Certs;
use client::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, PING, RESET, Raw, exchange, frame,
    literals, request,
};

/// Returns a metric of a node, summed over all labels.
pub(crate) fn metric(node: &Node, name: &str) -> u64 {
    let text = String::from_utf8(node.client().get("/metrics").body()).unwrap();
    let is_it =
        |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    text.lines().filter(is_it).map(value).sum()
}

/// Starts a node that lets requests wait for 30 s, because on a busy machine they may wait for
/// seconds.
fn node() -> Node {
    node_with_memory("512MiB")
}

fn node_with_memory(bytes: &str) -> Node {
    let args = ["--sync", "never", "--deadline", "30s", "--max-value", "8MiB", "--memory", bytes];
    Node::start(&args)
}

fn mixed_bytes(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|n| (n ^ (n >> 9)) as u8).collect()
}

/// Checks the HTTP contract through a client.
fn plays_the_contract(client: &Http2) {
    let put = client.put("/v0/entity?id=k", b"v");
    assert_eq!((put.status.as_u16(), put.headers.contains_key("etag")), (201, true));
    assert!(!put.headers.contains_key("connection"));
    let got = client.get("/v0/entity?id=k");
    assert_eq!((got.status.as_u16(), &got.body[..]), (200, &b"v"[..]));
    assert_eq!(
        (&got.headers["content-length"], &got.headers["etag"]),
        (&"1".parse().unwrap(), &put.headers["etag"],)
    );
    let head = client.request("HEAD", "/v0/entity?id=k", b"");
    assert_eq!(
        (head.status.as_u16(), &head.headers["content-length"]),
        (200, &"1".parse().unwrap())
    );
    assert!(head.body.is_empty());
    let tag = put.headers["etag"].to_str().unwrap();
    let conditional = |tag: &str| {
        let head = client.head("PUT", "/v0/entity?id=k").header("if-match", tag);
        client.send(head.body(()).unwrap(), b"w").unwrap().status.as_u16()
    };
    assert_eq!([conditional(tag), conditional(tag)], [201, 412]);
    assert_eq!(client.put("/v0/entity?id=l", b"").status, 201);
    assert_eq!(client.get("/v0/entities?start=a").body, b"k\nwl\n");
    assert_eq!(client.request("DELETE", "/v0/entity?id=k", b"").status, 202);
    assert_eq!(client.get("/v0/entity?id=k").status, 404);
    assert_eq!(client.get("/v0/entity").json()["status"], 400);
    assert_eq!(client.get("/nowhere").json()["status"], 404);
    assert_eq!(client.request("POST", "/v0/entities?start=a", b"").status, 405);
    for path in ["/healthz", "/readyz", "/metrics", "/v0/status", "/ui"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
}

#[test]
fn the_contract_holds_with_prior_knowledge_and_by_alpn() {
    let plain = node();
    plays_the_contract(&Http2::connect(plain.address));
    assert_eq!(metric(&plain, "kvorum_connections_http2_total"), 1);
    let certs = Certs::new();
    let node = certs.node(&["--sync", "never"]);
    plays_the_contract(&Http2::connect_tls(node.address, &certs.client(None, &["h2", "http/1.1"])));
    // A client that offers only HTTP/1.1 gets it, and so does a client that offers no protocol.
    for alpn in [&["http/1.1"][..], &[]] {
        let config = certs.client(None, alpn);
        let mut old = kit::raw::Client::connect_tls(node.address, &config).unwrap();
        assert_eq!(old.get("/v0/entity?id=l").status, 200);
    }
    // A plaintext request on a TLS port gets an answer that says so, and has no effect.
    let refused = Http2::connect(node.address).put("/v0/entity?id=l", b"w");
    assert!(refused.json()["detail"].as_str().unwrap().contains("https://"));
    // Nodes connect to other nodes with their own ALPN name; on such connections the node speaks
    // the peer protocol.
    let config = certs.client(None, &["kvorum-peer"]);
    let mut peer = kit::raw::Client::connect_tls(node.address, &config).unwrap();
    peer.send(crate::peers::UPGRADE);
    assert_eq!(peer.read_head().unwrap().status, 101);
}

#[test]
fn a_preface_that_comes_in_pieces_is_understood_and_what_resembles_one_is_not_taken_for_it() {
    let node = node();
    for cut in [1, 2, 3, 4, 10] {
        let mut raw = Raw::connect_in_pieces(node.address, cut);
        raw.send(&request(1, "GET", "/healthz"));
        assert_eq!(raw.until(HEADERS).stream, 1, "{cut}");
    }
    let mut client = node.client();
    for piece in
        ["P", "U", "T /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv"]
    {
        client.send(piece);
    }
    assert_eq!(client.response().status, 201);
    let mut client = node.client();
    client.send("PRX * HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status, 404);
    let mut client = node.client();
    client.send("PR");
    client.finish_sending();
    assert!(client.is_closed());
}

#[test]
fn long_values_go_up_and_down_on_many_streams_at_once() {
    // Enough for all bodies at once, so that no upload waits for another one.
    let node = node_with_memory("2GiB");
    let client = Http2::connect(node.address);
    let values: Vec<_> = (0..24).map(|n| mixed_bytes(n * 60_000)).collect();
    let ask = |method: &'static str, n: usize, body: &[u8]| {
        let head = client.head(method, &format!("/v0/entity?id=k{n}")).body(()).unwrap();
        exchange(client.send.clone(), head, Bytes::copy_from_slice(body))
    };
    client.run(async {
        let puts: Vec<_> =
            values.iter().enumerate().map(|(n, v)| tokio::spawn(ask("PUT", n, v))).collect();
        for put in puts {
            let put = put.await.unwrap().unwrap();
            assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body));
        }
        let gets: Vec<_> = (0..values.len()).map(|n| tokio::spawn(ask("GET", n, b""))).collect();
        for (get, value) in gets.into_iter().zip(&values) {
            assert!(get.await.unwrap().unwrap().body == *value);
        }
        let small: Vec<_> = (0..500)
            .map(|n| {
                let head = client.head("PUT", &format!("/v0/entity?id=s{n}")).body(()).unwrap();
                tokio::spawn(exchange(client.send.clone(), head, Bytes::from_static(b"v")))
            })
            .collect();
        for put in small {
            assert_eq!(put.await.unwrap().unwrap().status, 201);
        }
    });
    let long = mixed_bytes(8 << 20);
    assert_eq!(client.put("/v0/entity?id=long", &long).status, 201);
    assert!(client.get("/v0/entity?id=long").body == long);
    let too_long = client.put("/v0/entity?id=long", &mixed_bytes((8 << 20) + 1));
    assert_eq!((too_long.status.as_u16(), &too_long.json()["outcome"]), (413, &"none".into()));
    assert_eq!(client.get("/v0/entities?start=s&end=t").body.len(), 10 * 4 + 90 * 5 + 400 * 6);
}

#[test]
fn http2_requests_are_checked_for_token_origin_and_host() {
    let files = tempfile::tempdir().unwrap();
    let admin = files.path().join("admin");
    std::fs::write(&admin, "an admin token of this test").unwrap();
    let node = Node::start(&["--require-auth", "--admin-token-file", admin.to_str().unwrap()]);
    let client = Http2::connect(node.address);
    let refused = client.put("/v0/entity?id=k", b"v");
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
    let with = |name: &str, value: &str, target: &str| {
        let head = client.head("GET", target).header(name, value).body(()).unwrap();
        client.send(head, b"").unwrap().status.as_u16()
    };
    assert_eq!(with("authorization", "Bearer wrong", "/admin/layout"), 401);
    assert_eq!(with("authorization", "Bearer an admin token of this test", "/admin/layout"), 200);
    assert_eq!(client.get("/admin/layout").status, 401, "a token is of one request");

    let node = self::node();
    let client = Http2::connect(node.address);
    let evil = Request::builder().method("PUT").uri("http://evil.example/v0/entity?id=k");
    let refused = client.send(evil.body(()).unwrap(), b"v").unwrap();
    assert_eq!((refused.status.as_u16(), &refused.json()["outcome"]), (421, &"none".into()));
    let put = |headers: &[(&str, &str)]| {
        let mut head = client.head("PUT", "/v0/entity?id=k");
        for (name, value) in headers {
            head = head.header(*name, *value);
        }
        client.send(head.body(()).unwrap(), b"v").unwrap().status.as_u16()
    };
    assert_eq!(put(&[("origin", "http://evil.example")]), 403);
    assert_eq!(put(&[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(put(&[("host", "evil.example")]), 400, "it differs from :authority");
    assert_eq!(put(&[("host", "localhost"), ("host", "localhost")]), 400);
    assert_eq!(client.get("/v0/entity?id=k").status, 404, "nothing was done");
    assert_eq!(put(&[("host", "localhost")]), 201);
}

/// A request needs `:authority` or a `Host` header. The first byte of the answer's header block is
/// the status.
#[test]
fn a_request_without_authority_or_host_is_refused() {
    let node = node();
    let mut raw = Raw::connect(node.address, &[]);
    let pseudo = [(":method", "GET"), (":scheme", "http"), (":path", "/healthz")];
    // Indexes of the static table (RFC 7541, appendix A): 0x88 is status 200, and 0x8c is status
    // 400.
    let asked = [(&[][..], 0x8c), (&[("host", "localhost")][..], 0x88)];
    for (stream, (headers, status)) in [1, 3].into_iter().zip(asked) {
        let block = literals(&[&pseudo[..], headers].concat());
        raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        assert_eq!(raw.until(HEADERS).payload[0], status);
    }
}

#[test]
fn an_upload_that_is_reset_stores_nothing_and_the_connection_goes_on() {
    let node = node();
    let mut raw = Raw::connect(node.address, &[]);
    for stream in [1, 3, 5] {
        raw.send(&request(stream, "PUT", "/v0/entity?id=reset"));
        raw.send(&frame(DATA, 0, stream, &[7; 10_000]));
        // NO_ERROR is the error code that is most easily mistaken for the end of the body.
        let reason = if stream == 1 { Reason::NO_ERROR } else { Reason::CANCEL };
        raw.send(&frame(RESET, 0, stream, &u32::from(reason).to_be_bytes()));
    }
    raw.send(&request(7, "GET", "/v0/entity?id=reset"));
    let answer = raw.until(HEADERS);
    assert_eq!((answer.stream, answer.payload[0]), (7, 0x8d), "404");
    // The client closes the connection in the middle of this stream's body.
    raw.send(&request(9, "PUT", "/v0/entity?id=reset"));
    raw.send(&frame(DATA, 0, 9, &[7; 10_000]));
    drop(raw);
    wait_until("its end", || metric(&node, "kvorum_connections") <= 1);
    assert_eq!(node.client().get("/v0/entity?id=reset").status, 404);
    wait_until("the release of its memory", || metric(&node, "kvorum_request_body_bytes") == 0);
}

#[test]
fn a_reader_that_stops_gets_the_rest_when_it_goes_on_and_holds_up_no_other_stream() {
    let node = node();
    let long = mixed_bytes(4 << 20);
    assert_eq!(node.client().put("/v0/entity?id=long", &long).status, 201);
    let client = Http2::connect(node.address);
    let head = client.head("GET", "/v0/entity?id=long").body(()).unwrap();
    client.run(async {
        let mut send = client.send.clone().ready().await.unwrap();
        let (response, _) = send.send_request(head, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let first = body.data().await.unwrap().unwrap();
        // The stream's window is nearly used up now; the other streams use the connection's window.
        for _ in 0..100 {
            let head = client.head("GET", "/healthz").body(()).unwrap();
            let other = exchange(client.send.clone(), head, Bytes::new()).await.unwrap();
            assert_eq!(other.status, 200);
        }
        body.flow_control().release_capacity(first.len()).unwrap();
        let rest = client::all_of(body).await.unwrap();
        assert!([&first[..], &rest].concat() == long);
    });
}

#[test]
fn clients_that_go_away_leave_nothing_behind() {
    let node = node();
    assert_eq!(node.client().put("/v0/entity?id=long", &mixed_bytes(4 << 20)).status, 201);
    for number in 0..20 {
        let mut raw = Raw::connect(node.address, &[]);
        for stream in (1..40).step_by(2) {
            raw.send(&request(stream, "GET", "/v0/entity?id=long"));
        }
        raw.send(&request(41, "GET", "/ui/events"));
        raw.until(HEADERS);
        if number % 2 == 0 {
            raw.stream.shutdown(Shutdown::Both).unwrap();
        }
    }
    wait_until("the end of all", || {
        metric(&node, "kvorum_connections") <= 1 && metric(&node, "kvorum_response_body_bytes") == 0
    });
}

#[test]
fn a_node_that_stops_says_goodbye_and_answers_what_is_under_way() {
    for signal in [Signal::TERM, Signal::INT] {
        let node = node();
        let idle = Http2::connect(node.address);
        assert_eq!(idle.put("/v0/entity?id=k", b"v").status, 201);
        let mut busy = Raw::connect(node.address, &[]);
        busy.send(&request(1, "PUT", "/v0/entity?id=late"));
        busy.send(&frame(DATA, 0, 1, b"v"));
        // The node reads frames in order, so the upload has begun when this request is answered.
        busy.send(&request(3, "GET", "/v0/entity?id=k"));
        busy.until(DATA);
        // A stream of server-sent events, which the node itself ends when it stops.
        busy.send(&request(5, "GET", "/ui/events"));
        busy.until(DATA);
        let silent = Raw::connect(node.address, &[]);
        node.signal(signal);
        let goodbye = busy.until(GOAWAY);
        assert_eq!(goodbye.reason(), Reason::NO_ERROR);
        let ping = busy.until(PING);
        busy.send(&frame(PING, 1, 0, &ping.payload));
        busy.send(&frame(DATA, END_STREAM, 1, b"alue"));
        let rest = busy.rest();
        let mut heads = rest.iter().filter(|frame| frame.kind == HEADERS);
        assert!(heads.any(|head| head.stream == 1), "what was under way is answered: {rest:?}");
        assert!(
            rest.iter().any(|frame| frame.kind == GOAWAY && frame.payload[..4] == [0, 0, 0, 5])
        );
        assert!(idle.ends_well());
        drop(silent);
        let (status, log) = node.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(!log.contains("still busy"), "{log}");
    }
}
