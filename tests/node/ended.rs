//! Tokens that are revoked or expire during a request: nothing is stored with a token that is no
//! longer valid.

use bytes::Bytes;

use crate::http2::client::{Http2, all_of};
use crate::process::{Node, wait_until};
use crate::tokens::{ADMIN, Files, bearer, single_node, status};

/// The way in which a token becomes invalid.
#[derive(Debug, Clone, Copy)]
enum End {
    Revoked,
    Expired,
}

fn create(files: &Files, node: &Node, name: &str, end: End) -> String {
    let expires: &[&str] = if matches!(end, End::Expired) { &["--expires", "6s"] } else { &[] };
    files.create(node.address, name, expires)
}

/// Makes the token invalid, and waits until the node refuses it.
fn end(files: &Files, node: &Node, (name, token): (&str, &str), end: End) {
    if matches!(end, End::Revoked) {
        assert!(files.run(node.address, "admin", &["token", "revoke", name]).status.success());
    }
    let target = "/v0/entity?id=other";
    wait_until("the token ends", || status(node.address, "GET", target, token) == 401);
}

#[test]
fn a_slow_upload_is_not_stored_once_its_token_has_ended() {
    let files = Files::new();
    let node = single_node(&files);
    let cases = [
        ("short", "", 8, End::Revoked),
        ("short-expires", "", 8, End::Expired),
        ("long", "", 300_000, End::Revoked),
        ("conditional", "If-None-Match: *\r\n", 8, End::Revoked),
        ("conditional-long", "If-None-Match: *\r\n", 300_000, End::Expired),
        ("once", "Idempotency-Key: once\r\n", 8, End::Revoked),
    ];
    for (name, headers, length, how) in cases {
        let token = create(&files, &node, name, how);
        let mut slow = node.client();
        slow.send(format!(
            "PUT /v0/entity?id={name} HTTP/1.1\r\nHost: localhost\r\n{}{headers}Content-Length: \
             {length}\r\nExpect: 100-continue\r\n\r\n",
            bearer(&token)
        ));
        assert_eq!(slow.read_head().unwrap().status, 100, "{name}: it was admitted");
        let value = vec![b'v'; length];
        slow.send(&value[..length / 2]);
        end(&files, &node, (name, &token), how);
        slow.send(&value[length / 2..]);
        let refused = slow.response();
        let problem = refused.json();
        assert_eq!((refused.status, &problem["outcome"]), (401, &"none".into()), "{name}");
        assert!(problem["detail"].as_str().unwrap().contains("while this request"), "{problem}");
        let target = format!("/v0/entity?id={name}");
        assert_eq!(status(node.address, "GET", &target, ADMIN), 404, "{name} was stored");
    }
}

#[test]
fn a_slow_http2_upload_is_not_stored_once_its_token_has_ended() {
    let files = Files::new();
    let node = single_node(&files);
    for (name, how) in [("revoked", End::Revoked), ("expired", End::Expired)] {
        let token = create(&files, &node, name, how);
        let client = Http2::connect(node.address);
        let head = client.head("PUT", &format!("/v0/entity?id={name}"));
        let head = head.header("authorization", format!("Bearer {token}"));
        let (answer, mut upload) = client.begin(head.body(()).unwrap());
        client.run(async { upload.send_data(Bytes::from_static(b"half"), false).unwrap() });
        // A node reads the frames of a connection in order, so the PUT was admitted before this
        // answer.
        assert_eq!(client.get("/healthz").status, 200);
        end(&files, &node, (name, &token), how);
        let answer = client.run(async {
            upload.send_data(Bytes::from_static(b"rest"), true).unwrap();
            let (head, body) = answer.await.unwrap().into_parts();
            (head.status, all_of(body).await.unwrap())
        });
        let problem: serde_json::Value = serde_json::from_slice(&answer.1).unwrap();
        assert_eq!((answer.0.as_u16(), &problem["outcome"]), (401, &"none".into()), "{name}");
        let target = format!("/v0/entity?id={name}");
        assert_eq!(status(node.address, "GET", &target, ADMIN), 404, "{name} was stored");
    }
}

#[test]
fn a_recording_is_not_told_to_a_token_that_has_ended_meanwhile() {
    let files = Files::new();
    let node = single_node(&files);
    let token = files.create(node.address, "brief", &["--for", "admin", "--expires", "1s"]);
    let target = "/admin/profile?seconds=2&format=folded";
    assert_eq!(status(node.address, "GET", target, &token), 401);
}
