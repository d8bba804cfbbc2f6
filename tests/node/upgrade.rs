//! Requests with an `Upgrade` header, such as Java's HTTP client sends by default. The node
//! declines the offer by an answer in HTTP/1.1. A refused request gets its answer like any other
//! request.

use kit::raw::Client;

use crate::process::Node;
use crate::tokens::{Files, single_node};

/// Headers of the first request that Java's client sends to a server.
const OFFER: &str = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
    HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";

/// Repetitions of each case, because a reset destroys an answer only in some of them.
const TRIES: usize = 5;

/// Sends a head and a body without reading in between; returns the status of the answer.
fn send_all_then_read_status(node: &Node, head: &str, body: &[u8]) -> u16 {
    let mut client = node.client();
    client.send(head);
    client.send(body);
    read_last_status(&mut client)
}

/// Returns the status of the last answer on a connection, which must then end without a reset. If a
/// reset follows the answer at once, a client that is still sending, or far away, loses the answer.
fn read_last_status(client: &mut Client) -> u16 {
    let answer = client.try_response();
    let status = answer.unwrap_or_else(|error| panic!("{error} instead of an answer")).status;
    assert_eq!(client.rest().expect("the connection is reset"), b"", "after {status}");
    status
}

fn put(headers: &str, length: usize) -> String {
    format!(
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{OFFER}{headers}Content-Length: \
         {length}\r\n\r\n"
    )
}

#[test]
fn an_answer_that_refuses_a_body_arrives() {
    let node = Node::start(&["--max-value", "16KiB"]);
    let body = vec![b'v'; 400 << 10];
    let chunks = [&b"40000\r\n"[..], &vec![b'v'; 0x40000]].concat();
    let chunked = "PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n";
    for _ in 0..TRIES {
        assert_eq!(send_all_then_read_status(&node, &put("", body.len()), &body), 413);
        assert_eq!(
            send_all_then_read_status(&node, &put("If-Match: *\r\n", body.len()), &body),
            413
        );
        assert_eq!(
            send_all_then_read_status(&node, &put("If-None-Match: x\r\n", body.len()), &body),
            400
        );
        assert_eq!(
            send_all_then_read_status(
                &node,
                &put("Origin: http://evil.example\r\n", body.len()),
                &body
            ),
            403
        );
        let head = format!("{chunked}{OFFER}Transfer-Encoding: chunked\r\n\r\n");
        assert_eq!(send_all_then_read_status(&node, &head, &chunks), 413);
        let head = format!("{chunked}{OFFER}Transfer-Encoding: gzip, chunked\r\n\r\n");
        assert_eq!(send_all_then_read_status(&node, &head, &chunks), 501);
    }
    assert_eq!(node.client().get("/v0/entity?id=k").status, 404);
}

#[test]
fn an_answer_about_a_missing_token_arrives() {
    let files = Files::new();
    let node = single_node(&files);
    let body = vec![b'v'; 400 << 10];
    for _ in 0..TRIES {
        assert_eq!(send_all_then_read_status(&node, &put("", body.len()), &body), 401);
    }
}

/// hyper itself answers the later, malformed request on the connection.
#[test]
fn an_answer_to_a_malformed_head_arrives() {
    let node = Node::start(&[]);
    let long = format!("GET /{}", "a".repeat(1 << 20));
    for _ in 0..TRIES {
        for (bad, expected) in
            [("no request\r\n\r\n".to_owned(), &[400][..]), (long.clone(), &[414, 431][..])]
        {
            let mut client = Client::connect(node.address);
            client.send(format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{OFFER}\r\n"));
            assert_eq!(client.response().status, 404, "the offer is declined");
            client.send(&bad);
            client.send(vec![b'x'; 256 << 10]);
            let status = read_last_status(&mut client);
            assert!(expected.contains(&status), "{status}");
        }
    }
}

#[test]
fn a_connection_that_offers_an_upgrade_is_kept() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for method in ["PUT", "GET", "DELETE"] {
        client.send(format!(
            "{method} /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{OFFER}Content-Length: 0\r\n\
             \r\n"
        ));
        let answer = client.response();
        assert!(answer.status < 300 && !answer.closes(), "{method}: {}", answer.status);
    }
}
