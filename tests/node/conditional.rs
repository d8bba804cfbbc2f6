//! Conditional writes and additions: the answers of one node and of three nodes.

use std::thread;

use kit::raw::{Client, Response};
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::process::{Node, kvorum};

pub(crate) fn ask(
    client: &mut Client,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> Response {
    let length = body.len();
    client.send(format!(
        "{method} /v0/entity?{target} HTTP/1.1\r\nHost: localhost\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    client.response()
}

fn put(client: &mut Client, key: &str, condition: &str, value: &str) -> Response {
    ask(client, "PUT", &format!("id={key}"), &format!("{condition}\r\n"), value)
}

fn delete(client: &mut Client, key: &str, condition: &str) -> Response {
    ask(client, "DELETE", &format!("id={key}"), &format!("{condition}\r\n"), "")
}

fn add(client: &mut Client, key: &str, number: &str) -> Response {
    ask(client, "POST", &format!("id={key}&add={number}"), "", "")
}

fn tag(response: &Response) -> String {
    response.header("etag").expect("it has an ETag").to_owned()
}

fn is(tag: &str) -> String {
    format!("If-Match: {tag}")
}

const ABSENT: &str = "If-None-Match: *";
const EXISTS: &str = "If-Match: *";

/// Checks the guarantees of conditional writes. The requests go through these clients in turn.
fn check_all_promises(clients: &mut [Client]) {
    let count = clients.len();
    let mut turn = 0;
    let mut next = || {
        turn += 1;
        turn % count
    };
    assert_eq!(put(&mut clients[next()], "k", EXISTS, "x").status, 412);
    let first = put(&mut clients[next()], "k", ABSENT, "one");
    assert_eq!(first.status, 201);
    let refused = put(&mut clients[next()], "k", ABSENT, "two");
    assert_eq!((refused.status, tag(&refused)), (412, tag(&first)));
    assert_eq!(refused.json()["outcome"], "none");
    assert_eq!(refused.json()["type"], "precondition-failed");
    let read = clients[next()].get("/v0/entity?id=k");
    assert_eq!((tag(&read), read.body()), (tag(&first), b"one".to_vec()));

    let listed = format!("If-Match: \"x\", {}", tag(&first));
    let second = put(&mut clients[next()], "k", &listed, "two");
    assert_eq!(second.status, 201);
    assert_ne!(tag(&second), tag(&first));
    assert_eq!(put(&mut clients[next()], "k", &is(&tag(&first)), "three").status, 412);
    let weak = format!("If-Match: W/{}", tag(&second));
    let refused = put(&mut clients[next()], "k", &weak, "three");
    assert_eq!(refused.status, 412, "a weak tag");
    let said = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(said.contains("weak tag (W/\"...\") in If-Match is true of no value"), "{said}");

    // A plain write starts a new state, with an ordinary tag.
    let plain = clients[next()].put("/v0/entity?id=k", b"plain");
    assert_eq!(put(&mut clients[next()], "k", &is(&tag(&second)), "three").status, 412);
    let third = put(&mut clients[next()], "k", &is(&tag(&plain)), "three");
    assert_eq!(third.status, 201);
    let unchanged = format!("If-None-Match: {}\r\n", tag(&third));
    let read = format!("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{unchanged}\r\n");
    let client = &mut clients[next()];
    client.send(read);
    assert_eq!(client.head_response().status, 304);

    assert_eq!(delete(&mut clients[next()], "k", &is(&tag(&plain))).status, 412);
    assert_eq!(delete(&mut clients[next()], "k", &is(&tag(&third))).status, 202);
    assert_eq!(clients[next()].get("/v0/entity?id=k").status, 404);
    let gone = delete(&mut clients[next()], "k", EXISTS);
    assert_eq!((gone.status, gone.header("etag")), (412, None));
    assert_eq!(put(&mut clients[next()], "k", ABSENT, "again").status, 201);

    for (number, sum) in [("5", "5"), ("-7", "-2"), ("0", "-2"), ("9223372036854775807", "")] {
        let added = add(&mut clients[next()], "n", number);
        let sum = if sum.is_empty() { "9223372036854775805" } else { sum };
        assert_eq!((added.status, added.body()), (200, sum.as_bytes().to_vec()));
        assert_eq!(tag(&added), tag(&clients[next()].get("/v0/entity?id=n")));
    }
    let over = add(&mut clients[next()], "n", "3");
    assert_eq!((over.status, over.json()["type"].as_str()), (409, Some("overflow")));
    for (key, value) in [("a", "12a"), ("b", ""), ("c", "1.5"), ("d", " 1"), ("e", "+5")] {
        clients[next()].put(&format!("/v0/entity?id={key}"), value.as_bytes());
        let refused = add(&mut clients[next()], key, "1");
        assert_eq!((refused.status, refused.json()["type"].as_str()), (409, Some("not-a-number")));
    }
    let large = "1".repeat(1 << 20);
    clients[next()].put("/v0/entity?id=large", large.as_bytes());
    assert_eq!(add(&mut clients[next()], "large", "1").status, 409);
    let tag = tag(&clients[next()].get("/v0/entity?id=large"));
    let half = &large[..large.len() / 2];
    assert_eq!(put(&mut clients[next()], "large", &is(&tag), half).status, 201);
    assert_eq!(clients[next()].get("/v0/entity?id=large").body(), half.as_bytes());
}

#[test]
fn one_node_keeps_all_promises_of_conditional_writes() {
    let node = Node::start(&[]);
    check_all_promises(&mut [node.client()]);
}

#[test]
fn three_nodes_keep_all_promises_of_conditional_writes_through_any_node() {
    let cluster = Cluster::start(3, &[]);
    check_all_promises(&mut [cluster.client(0), cluster.client(1), cluster.client(2)]);
}

#[test]
fn a_node_without_sync_keeps_all_promises_of_conditional_writes() {
    let node = Node::start(&["--sync", "never"]);
    check_all_promises(&mut [node.client()]);
}

#[test]
fn invalid_conditional_writes_are_refused_as_not_done() {
    let cluster = Cluster::start(3, &[]);
    let mut client = cluster.client(0);
    client.put("/v0/entity?id=k", b"old");
    let many = vec!["\"0123456789abcdef-01234567\""; 500].join(",");
    for (method, target, headers) in [
        ("PUT", "id=k&from=1", "If-Match: *\r\n"),
        ("PUT", "id=k&ack=1", "If-Match: *\r\n"),
        ("PUT", "id=k", "If-Match: *\r\nIf-None-Match: *\r\n"),
        ("PUT", "id=k", "If-Match: \"0123\r\n"),
        ("PUT", "id=k", "If-Match: \r\n"),
        ("PUT", "id=k", "If-Match: *, \"a\"\r\n"),
        ("PUT", "id=k", "If-None-Match: \"a\"\r\n"),
        ("DELETE", "id=k", "If-None-Match: *\r\n"),
        ("POST", "id=k&add=1", "If-Match: *\r\n"),
        ("POST", "id=k&add=1", "Idempotency-Key: \r\n"),
        ("POST", "id=k&add=1", "Idempotency-Key: x\r\nIdempotency-Key: x\r\n"),
        ("PUT", "id=k", &format!("Idempotency-Key: {}\r\n", "x".repeat(65))),
        ("PUT", "id=k&ack=1", "Idempotency-Key: x\r\n"),
        ("DELETE", "id=k&from=1", "Idempotency-Key: x\r\n"),
        ("POST", "id=k&add=", ""),
        ("POST", "id=k&add=+1", ""),
        ("POST", "id=k&add=1.5", ""),
        ("POST", "id=k&add=9223372036854775808", ""),
        ("POST", "id=k&add=1&add=2", ""),
        ("POST", "id=k&add=1&from=1", ""),
    ] {
        let body = if method == "POST" { "" } else { "new" };
        let refused = ask(&mut client, method, target, headers, body);
        assert_eq!(refused.status, 400, "{method} {target} {headers}");
    }
    let refused = ask(&mut client, "PUT", "id=k", &format!("If-Match: {many}\r\n"), "new");
    assert_eq!(refused.status, 412, "a long list without the right one");
    let usual = ask(&mut client, "PUT", "id=k&ack=3&from=3", "If-Match: *\r\n", "new");
    assert_eq!(usual.status, 201, "the default may be said");
}

/// Concurrent additions through all nodes are applied exactly once.
#[test]
fn concurrent_additions_are_each_done_once() {
    const EACH: i64 = 40;
    let cluster = Cluster::start(3, &[]);
    // While nodes do not know each other yet, they may compete for a key, and leave the outcome of
    // an addition unknown.
    cluster.wait_until_settled();
    let mut threads = Vec::new();
    for number in 0..6 {
        let mut client = cluster.client(number % 3);
        threads.push(thread::spawn(move || {
            let mut sums = Vec::new();
            while sums.len() < EACH as usize {
                let added = add(&mut client, "n", "1");
                match added.status {
                    200 => {
                        let sum = String::from_utf8(added.body()).unwrap();
                        sums.push(sum.parse::<i64>().unwrap());
                    }
                    // Status 503 means that the node is overloaded and has not applied the
                    // addition.
                    503 => assert_eq!(added.json()["outcome"], "none"),
                    other => panic!("{other}: {:?}", added.json()),
                }
            }
            sums
        }));
    }
    let mut sums: Vec<i64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=6 * EACH).collect::<Vec<_>>(), "each sum is told once");
}

#[test]
fn conditional_writes_succeed_with_a_majority_and_fail_with_less() {
    let mut cluster = Cluster::start(3, &[]);
    let mut client = cluster.client(0);
    let first = put(&mut client, "k", ABSENT, "one");
    cluster.kill(2);
    let second = put(&mut client, "k", &is(&tag(&first)), "two");
    assert_eq!(second.status, 201);
    cluster.kill(1);
    let failed = put(&mut client, "k", &is(&tag(&second)), "three");
    assert!(matches!(failed.status, 503 | 504), "{}", failed.status);
    cluster.up(1);
    cluster.up(2);
    cluster.wait_until_settled();
    // Node n2, which was down, already has the write or gets it with the next write: no write is
    // lost or applied twice.
    let mut other = cluster.client(2);
    let read = other.get("/v0/entity?id=k");
    assert_eq!((read.status, read.body(), tag(&read)), (200, b"two".to_vec(), tag(&second)));
    assert_eq!(put(&mut other, "k", &is(&tag(&second)), "three").status, 201);
}

#[test]
fn what_was_acknowledged_outlives_a_kill_whatever_the_sync_mode() {
    for sync in ["always", "interval:60000", "never"] {
        let node = Node::start(&["--sync", sync]);
        let mut client = node.client();
        let mut last = put(&mut client, "k", ABSENT, "0");
        for number in 1..20 {
            last = put(&mut client, "k", &is(&tag(&last)), &number.to_string());
            assert_eq!(last.status, 201);
        }
        let data = node.kill();
        let node = Node::start_with(kvorum(), data, &["--sync", sync]);
        let read = node.client().get("/v0/entity?id=k");
        assert_eq!((read.body(), tag(&read)), (b"19".to_vec(), tag(&last)), "{sync}");
        assert_eq!(put(&mut node.client(), "k", &is(&tag(&last)), "20").status, 201);
    }
}

/// A write that is repeated with the same idempotency key is applied once. The repetition is
/// recognized by the list in the key's record; after other writes have replaced the list, by the
/// replicas; and also after a restart.
#[test]
fn a_write_with_an_idempotency_key_is_done_once() {
    let mut cluster = Cluster::start(3, &[]);
    let key = |word: &str| format!("Idempotency-Key: {word}\r\n");
    let mut client = cluster.client(0);
    let first = ask(&mut client, "POST", "id=n&add=5", &key("once"), "");
    assert_eq!((first.status, first.body()), (200, b"5".to_vec()));
    let answer = |response: &Response| {
        (response.status, response.body(), response.header("etag").map(str::to_owned))
    };
    let again = ask(&mut cluster.client(1), "POST", "id=n&add=5", &key("once"), "");
    assert_eq!(answer(&again), answer(&first), "at another node");
    for sum in 6..=17 {
        let other = ask(&mut client, "POST", "id=n&add=1", "", "");
        assert_eq!(other.body(), sum.to_string().as_bytes());
    }
    let again = ask(&mut client, "POST", "id=n&add=5", &key("once"), "");
    assert_eq!(answer(&again), answer(&first), "after twelve others");
    assert_eq!(ask(&mut client, "PUT", "id=n", "", "100").status, 201);
    let again = ask(&mut client, "POST", "id=n&add=5", &key("once"), "");
    assert_eq!(answer(&again), answer(&first), "after a plain write");
    drop(client);
    for node in 0..3 {
        cluster.stop(node);
        cluster.up(node);
    }
    cluster.wait_until_settled();
    let mut client = cluster.client(2);
    let again = ask(&mut client, "POST", "id=n&add=5", &key("once"), "");
    assert_eq!(answer(&again), answer(&first), "after a restart");
    assert_eq!(client.get("/v0/entity?id=n").body(), b"100");
    let other = ask(&mut client, "POST", "id=n&add=5", &key("another"), "");
    assert_eq!(other.body(), b"105");
}

#[test]
fn plain_writes_with_an_idempotency_key_are_done_once_too() {
    let cluster = Cluster::start(3, &[]);
    let mut client = cluster.client(0);
    let key = "Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"\r\n";
    let put = ask(&mut client, "PUT", "id=k", key, "mine");
    assert_eq!(put.status, 201);
    assert_eq!(ask(&mut client, "PUT", "id=k", "", "theirs").status, 201);
    let again = ask(&mut client, "PUT", "id=k", key, "mine");
    assert_eq!((again.status, again.header("etag")), (201, put.header("etag")));
    assert_eq!(client.get("/v0/entity?id=k").body(), b"theirs");
    let delete = ask(&mut client, "DELETE", "id=k", "Idempotency-Key: d\r\n", "");
    assert_eq!(delete.status, 202);
    assert_eq!(ask(&mut client, "PUT", "id=k", "If-None-Match: *\r\n", "new").status, 201);
    assert_eq!(ask(&mut client, "DELETE", "id=k", "Idempotency-Key: d\r\n", "").status, 202);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"new");
    for (method, target) in [("POST", "id=k&add=1"), ("PUT", "id=k"), ("DELETE", "id=k")] {
        let word = format!("Idempotency-Key: {method}\r\n");
        ask(&mut client, "POST", "id=other&add=1", "Idempotency-Key: other\r\n", "");
        assert!(ask(&mut client, "POST", "id=sum&add=1", &word, "").status == 200);
        let body = if method == "PUT" { "7" } else { "" };
        let another = ask(&mut client, method, &target.replace('k', "sum"), &word, body);
        let expected = if method == "POST" { 200 } else { 422 };
        assert_eq!(another.status, expected, "{method}: another write with the same key");
    }
}

/// Requests that differ from the `PUT` of `one` with the same idempotency key: method, query,
/// headers, body.
const OTHERS: [(&str, &str, &str, &str); 7] = [
    ("DELETE", "id=k", "", ""),
    ("PUT", "id=k", "", "two"),
    ("PUT", "id=k", "", ""),
    ("PUT", "id=k&ttl=60s", "", "one"),
    ("PUT", "id=k", "If-Match: *\r\n", "one"),
    ("PUT", "id=k", "If-None-Match: *\r\n", "one"),
    ("POST", "id=k&add=1", "", ""),
];

/// Asserts that each node refuses each of `OTHERS`, and that no request takes effect.
fn others_are_refused(cluster: &Cluster, word: &str, when: &str) {
    for (node, (method, target, headers, body)) in
        (0..3).flat_map(|node| OTHERS.map(|other| (node, other)))
    {
        let mut client = cluster.client(node);
        let headers = format!("Idempotency-Key: {word}\r\n{headers}");
        let refused = ask(&mut client, method, target, &headers, body);
        assert_eq!(refused.status, 422, "{method} {target} {headers} {when}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        let problem = refused.json();
        assert_eq!(
            (&problem["type"], &problem["outcome"]),
            (&"idempotency-key-reused".into(), &"none".into()),
            "{when}"
        );
    }
}

/// The first request is recognized by the list in the key's record, by the replicas after the list
/// has lost it, and after a restart.
#[test]
fn an_idempotency_key_is_good_for_one_request_only() {
    let mut cluster = Cluster::start(3, &[]);
    let word = "Idempotency-Key: w\r\n";
    let mut client = cluster.client(0);
    let first = ask(&mut client, "PUT", "id=k", word, "one");
    assert_eq!(first.status, 201);
    others_are_refused(&cluster, "w", "with the first one in the key");
    assert_eq!(client.get("/v0/entity?id=k").body(), b"one");
    assert_eq!(ask(&mut client, "PUT", "id=k", "", "plain").status, 201);
    others_are_refused(&cluster, "w", "with a plain write since");
    assert_eq!(client.get("/v0/entity?id=k").body(), b"plain");
    drop(client);
    (0..3).for_each(|node| cluster.stop(node));
    (0..3).for_each(|node| cluster.up(node));
    cluster.wait_until_settled();
    others_are_refused(&cluster, "w", "after a restart");
    let mut client = cluster.client(1);
    let again = ask(&mut client, "PUT", "id=k", word, "one");
    assert_eq!((again.status, again.header("etag")), (201, first.header("etag")));
    assert_eq!(client.get("/v0/entity?id=k").body(), b"plain");
    let delete = ask(&mut client, "DELETE", "id=k", "Idempotency-Key: d\r\n", "");
    assert_eq!(delete.status, 202);
    let put = ask(&mut client, "PUT", "id=k", "Idempotency-Key: d\r\n", "one");
    assert_eq!(put.status, 422, "a PUT with the word of a DELETE");
    let elsewhere = ask(&mut client, "PUT", "id=other", word, "two");
    assert_eq!(elsewhere.status, 201, "a word belongs to its key");
}

/// Framing and notation do not make a request a different one: a repetition in chunks, or with
/// another notation of the parameters, gets the first answer.
#[test]
fn a_repetition_in_another_notation_gets_the_first_answer() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let word = "Idempotency-Key: w\r\n";
    let first = ask(&mut client, "PUT", "id=k&ttl=60s", word, "value");
    assert_eq!(first.status, 201);
    for target in ["id=k&ttl=60s", "ttl=1m&id=%6b", "id=k&ttl=060s&receipt=true&ack=1"] {
        let again = ask(&mut client, "PUT", target, word, "value");
        assert_eq!((again.status, again.header("etag")), (201, first.header("etag")), "{target}");
    }
    client.send(
        "PUT /v0/entity?id=k&ttl=1m HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: w\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\nva\r\n3\r\nlue\r\n0\r\n\r\n",
    );
    let again = client.response();
    assert_eq!((again.status, again.header("etag")), (201, first.header("etag")), "in chunks");
}

/// A client that sends the number in the body would otherwise add the number in the query instead.
#[test]
fn an_addition_with_a_body_is_refused() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    assert_eq!(add(client, "n", "2").body(), b"2");
    let chunked = |client: &mut Client, body: &str| {
        client.send(format!(
            "POST /v0/entity?id=n&add=1 HTTP/1.1\r\nHost: localhost\r\n\
             Transfer-Encoding: chunked\r\n\r\n{body}"
        ));
        client.response()
    };
    for refused in
        [ask(client, "POST", "id=n&add=1", "", "40"), chunked(client, "1\r\n4\r\n0\r\n\r\n")]
    {
        let problem = refused.json();
        assert_eq!((refused.status, &problem["outcome"]), (400, &"none".into()));
        let why = problem["detail"].as_str().unwrap();
        assert!(why.contains("takes no body") && why.contains("add=N"), "{why}");
    }
    assert_eq!(chunked(client, "0\r\n\r\n").body(), b"3", "an empty one is none");
}

/// The script `conditional.txt` tests the exact lists. Here a busy machine may report the links as
/// down.
#[test]
fn a_replica_that_hangs_until_the_deadline_is_not_called_pending() {
    let cluster = Cluster::start(3, &["--deadline", "1s", "--loops", "1"]);
    cluster.wait_until_settled();
    for node in [1, 2] {
        cluster.signal(node, Signal::STOP);
    }
    let failed = put(&mut cluster.client(0), "k", "If-None-Match: *", "v");
    for node in [1, 2] {
        cluster.signal(node, Signal::CONT);
    }
    let problem = failed.json();
    assert_eq!(failed.status, 504, "{problem}");
    assert_eq!(problem["pending"], serde_json::json!([]), "{problem}");
    let failures = problem["failed"].as_array().unwrap();
    // The coordinator may have forwarded the write of the key to one of the two nodes.
    assert!(!failures.is_empty(), "{problem}");
    for failure in failures {
        let reason = failure["reason"].as_str().unwrap();
        assert!(["timeout", "unreachable"].contains(&reason), "{problem}");
    }
}

/// At its start a replica promises to accept no earlier ballot, not even for a record that it
/// missed. Reads from more replicas than the default need the record at that replica.
#[test]
fn reads_from_more_replicas_than_the_default_find_what_a_restarted_replica_missed() {
    const KEYS: usize = 20;
    let mut cluster = Cluster::start(5, &[]);
    cluster.wait_until_settled();
    cluster.kill(4);
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        assert_eq!(put(&mut client, &format!("k{number}"), ABSENT, "one").status, 201);
    }
    cluster.up(4);
    cluster.wait_until_settled();
    for number in 0..KEYS {
        let mut client = cluster.client(number % 5);
        let got = client.get(&format!("/v0/entity?id=k{number}&ack=3&from=5"));
        assert_eq!((got.status, got.body()), (200, b"one".to_vec()), "k{number}");
        // A write without `from` continues from the value that the read completed.
        let changed = put(&mut client, &format!("k{number}"), &is(&tag(&got)), "two");
        assert_eq!(changed.status, 201, "k{number}");
    }
}
