//! Values that expire: the answers to clients, on one node and on three.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kit::raw::{Client, Response};
use lsm::{Batch, Engine, Fields, Kind, Options, RealDisk, Space, Version};

use crate::cluster::Cluster;
use crate::process::{Node, kvorum, wait_until};

const TARGET: &str = "/v0/entity?id=k";

fn ask(client: &mut Client, method: &str, query: &str, headers: &str, body: &str) -> Response {
    let length = body.len();
    client.send(format!(
        "{method} /v0/entity?{query} HTTP/1.1\r\nHost: localhost\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    client.response()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Returns the value's expiry in an answer, in milliseconds since 1970; `None` if the value does
/// not expire.
fn expires(response: &Response) -> Option<u64> {
    let header = response.header("kvorum-expires")?;
    let (seconds, millis) = header.split_once('.').unwrap();
    assert_eq!(millis.len(), 3, "{header}");
    Some(seconds.parse::<u64>().unwrap() * 1000 + millis.parse::<u64>().unwrap())
}

/// Permitted lead of an expiry over the wall clock plus the time to live, in milliseconds: a node
/// may add the time to live to a time that another node sent, which may be ahead of the wall clock.
const SKEW_MS: u64 = 2_000;

/// Asserts that the expiry in an answer is `seconds` after the write, which began at `asked_ms`.
/// Returns the expiry.
fn in_seconds(response: &Response, seconds: u64, asked_ms: u64) -> u64 {
    let told = expires(response).expect("it tells when the value expires");
    let allowed = asked_ms + seconds * 1000..=now_ms() + seconds * 1000 + SKEW_MS;
    assert!(allowed.contains(&told), "{told} is not within {allowed:?}");
    told
}

/// Checks the expiry with every kind of request. The requests go through these clients in turn.
fn a_value_is_there_until_it_expires(clients: &mut [Client]) {
    let count = clients.len();
    let mut turn = 0;
    let mut next = || {
        turn += 1;
        turn % count
    };
    let asked = now_ms();
    let put = ask(&mut clients[next()], "PUT", "id=k&ttl=1h", "", "long");
    assert_eq!(put.status, 201);
    let told = in_seconds(&put, 3600, asked);
    for client in &mut *clients {
        let got = client.get(TARGET);
        assert_eq!((got.status, got.body(), expires(&got)), (200, b"long".to_vec(), Some(told)));
        let tag = got.header("etag").unwrap();
        let unless = format!("If-None-Match: {tag}\r\n\r\n");
        client.send(format!("GET {TARGET} HTTP/1.1\r\nHost: localhost\r\n{unless}"));
        let unchanged = client.head_response();
        assert_eq!((unchanged.status, expires(&unchanged)), (304, Some(told)));
        client.send(format!("HEAD {TARGET} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let head = client.head_response();
        assert_eq!((head.status, expires(&head)), (200, Some(told)));
        assert_eq!(client.get("/v0/entities?start=k").chunks, [b"k\nlong"]);
        assert_eq!(ask(client, "PUT", "id=k", "If-None-Match: *\r\n", "x").status, 412);
    }
    let put = ask(&mut clients[next()], "PUT", "id=k&ttl=1s", "", "short");
    let told = expires(&put).unwrap();
    for client in &mut *clients {
        wait_until("its expiry", || {
            let asked = now_ms();
            let got = client.get(TARGET);
            assert!(got.status == 404 || asked < told, "it was there after its time");
            assert!(got.status == 200 || now_ms() >= told, "it was gone before its time");
            got.status == 404
        });
        let none = client.get(TARGET);
        assert_eq!(none.json()["type"], "not-found");
        assert_eq!((expires(&none), none.header("etag")), (None, None));
        assert_eq!(client.get("/v0/entities?start=k").chunks, [] as [Vec<u8>; 0]);
        let tag = put.header("etag").unwrap();
        for condition in ["*", tag] {
            let unmet = ask(client, "PUT", "id=k", &format!("If-Match: {condition}\r\n"), "x");
            assert_eq!((unmet.status, unmet.header("etag")), (412, None));
        }
        assert_eq!(ask(client, "DELETE", "id=k", "If-Match: *\r\n", "").status, 412);
    }
    let created = ask(&mut clients[next()], "PUT", "id=k", "If-None-Match: *\r\n", "new");
    assert_eq!((created.status, expires(&created)), (201, None));
    for client in clients {
        let got = client.get(TARGET);
        assert_eq!((got.status, got.body(), expires(&got)), (200, b"new".to_vec(), None));
    }
}

#[test]
fn a_value_is_there_until_it_expires_on_one_node() {
    let node = Node::start(&[]);
    a_value_is_there_until_it_expires(&mut [node.client()]);
}

#[test]
fn a_value_is_there_until_it_expires_on_three_nodes() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    a_value_is_there_until_it_expires(&mut [0, 1, 2].map(|node| cluster.client(node)));
}

#[test]
fn every_write_says_anew_whether_its_value_expires() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut clients = [0, 1, 2].map(|node| cluster.client(node));
    let mut turn = 0;
    let mut write = |method: &str, query: &str, headers: &str, body: &str| {
        turn += 1;
        let asked = now_ms();
        let answer = ask(&mut clients[turn % 3], method, query, headers, body);
        let got = clients[(turn + 1) % 3].get(TARGET);
        assert!([200, 201].contains(&answer.status), "{method} {query}: {}", answer.status);
        assert_eq!(expires(&got), expires(&answer), "{method} {query}");
        (answer, asked)
    };
    for headers in ["", "If-Match: *\r\n"] {
        for (ttl, seconds) in [("90s", 90), ("5m", 300), ("24h", 86_400), ("3650d", 315_360_000)] {
            write("PUT", "id=k", "", "x");
            let (put, asked) = write("PUT", &format!("id=k&ttl={ttl}"), headers, "7");
            in_seconds(&put, seconds, asked);
        }
        let (put, _) = write("PUT", "id=k", headers, "7");
        assert_eq!(expires(&put), None, "one without a ttl has no expiry");
    }
    let (sum, _) = write("POST", "id=k&add=1", "", "");
    assert_eq!((sum.body(), expires(&sum)), (b"8".to_vec(), None));
    let (sum, asked) = write("POST", "id=k&add=1&ttl=1h", "", "");
    let told = in_seconds(&sum, 3600, asked);
    let (sum, _) = write("POST", "id=k&add=1", "", "");
    assert_eq!((sum.body(), expires(&sum)), (b"10".to_vec(), Some(told)), "an addition keeps it");
    let (sum, asked) = write("POST", "id=k&add=1&ttl=2h", "", "");
    assert_eq!(sum.body(), b"11");
    in_seconds(&sum, 7200, asked);
}

/// A repeated request gets the first answer while the record of the written key has the outcome.
#[test]
fn an_idempotency_key_gives_a_value_its_expiry_once() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    let word = "Idempotency-Key: once\r\n";
    let asked = now_ms();
    let first = ask(&mut client, "PUT", "id=k&ttl=1h", word, "x");
    let told = in_seconds(&first, 3600, asked);
    let again = ask(&mut cluster.client(1), "PUT", "id=k&ttl=60m", word, "x");
    assert_eq!((again.status, expires(&again)), (201, Some(told)), "as of the first time");
    let other = ask(&mut cluster.client(1), "PUT", "id=k&ttl=5h", word, "x");
    assert_eq!(other.status, 422, "another time to live is another request");
    assert_eq!(expires(&client.get(TARGET)), Some(told));
    assert_eq!(client.put(TARGET, b"other").status, 201);
    let again = ask(&mut client, "PUT", "id=k&ttl=1h", word, "x");
    assert_eq!((again.status, again.header("etag")), (201, first.header("etag")));
    assert_eq!(expires(&again), None, "what it wrote is not there any more");
    let got = client.get(TARGET);
    assert_eq!((got.body(), expires(&got)), (b"other".to_vec(), None));
}

#[test]
fn a_ttl_that_makes_no_sense_is_refused_with_what_does() {
    let node = Node::start(&["--max-ttl", "30d"]);
    let mut client = node.client();
    for (method, query, says) in [
        ("PUT", "id=k&ttl=", "ttl=\"\" is not a time to live: write a whole number and s, m, h"),
        ("PUT", "id=k&ttl", "ttl=\"\" is not a time to live"),
        ("PUT", "id=k&ttl=0s", "ttl=\"0s\" is out of range 1s..3650d"),
        ("PUT", "id=k&ttl=-1s", "ttl=\"-1s\" is not a time to live"),
        ("PUT", "id=k&ttl=1.5h", "ttl=\"1.5h\" is not a time to live"),
        ("PUT", "id=k&ttl=999y", "ttl=\"999y\" is not a time to live"),
        ("PUT", "id=k&ttl=18446744073709551616s", "is out of range 1s..3650d"),
        ("PUT", "id=k&ttl=3651d", "ttl=\"3651d\" is out of range 1s..3650d"),
        ("PUT", "id=k&ttl=31d", "ttl=31d is more than this node's --max-ttl: 30d or less"),
        ("POST", "id=k&add=1&ttl=721h", "ttl=721h is more than this node's --max-ttl: 30d or less"),
        ("POST", "id=k&add=1&ttl=1", "ttl=\"1\" is not a time to live"),
        ("PUT", "id=k&ttl=1s&ttl=1s", "duplicate parameter \"ttl\""),
        ("GET", "id=k&ttl=1s", "unknown parameter \"ttl\"; known: id, ack, from; omit it"),
        ("DELETE", "id=k&ttl=1s", "unknown parameter \"ttl\"; known: id, ack, from, receipt; omit"),
    ] {
        for condition in ["", "If-Match: *\r\n", "Idempotency-Key: w\r\n"] {
            if !condition.is_empty() && method != "PUT" {
                continue;
            }
            let refused = ask(&mut client, method, query, condition, "x");
            assert_eq!(refused.status, 400, "{method} {query} {condition}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(says), "{method} {query}: {detail}");
        }
    }
    assert_eq!(client.get(TARGET).status, 404, "nothing was written");
    assert_eq!(client.put("/v0/entity?id=k&ttl=30d", b"x").status, 201);
}

/// Writes values into the store of a stopped node. Each has a key, the microseconds since the
/// write, and the milliseconds since the expiry (0 if it never expires).
fn plant(data: &Path, values: &[(&str, u64, u64)]) {
    let engine = Engine::open(Arc::new(RealDisk::open(data).unwrap()), Options::default()).unwrap();
    let mut batch = Batch::new();
    for (key, age, expired) in values {
        let version = Version { time: (now_ms() * 1000 - age) << 12, origin: 1 };
        let expiry_ms = if *expired == 0 { 0 } else { now_ms() - expired };
        let fields = Fields { expiry_ms, ..Fields::new(Kind::Value, version) };
        batch.write(Space::Data, key.as_bytes(), &fields, b"planted").unwrap();
    }
    engine.commit(std::iter::once(&batch)).unwrap();
    engine.close().unwrap();
}

/// Only one replica has the expired value. It hides the older values of the other replicas, and is
/// copied to them.
#[test]
fn an_expired_value_hides_an_older_one_that_lives() {
    const AGE: u64 = 60_000_000;
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    for node in 0..3 {
        cluster.stop(node);
        plant(&cluster.data(node), &[("k", 2 * AGE, 0), ("l", 2 * AGE, 0)]);
    }
    plant(&cluster.data(2), &[("k", AGE, 1_000), ("l", AGE, 1_000)]);
    for node in 0..3 {
        cluster.up(node);
    }
    cluster.wait_until_settled();
    assert_eq!(cluster.local(0), [b"k\nplanted", b"l\nplanted"]);
    assert_eq!(cluster.local(2), [] as [Vec<u8>; 0]);
    let all = "/v0/entities?start=a&ack=3";
    wait_until("a range of all three", || cluster.client(0).get(all).status == 200);
    assert_eq!(cluster.client(0).get(all).chunks, [] as [Vec<u8>; 0]);
    let of_all = format!("{TARGET}&ack=3");
    wait_until("a read of all three", || cluster.client(0).get(&of_all).status == 404);
    for node in [0, 1] {
        wait_until("its repair", || cluster.local(node) == [b"l\nplanted"]);
    }
    cluster.kill(2);
    assert_eq!(cluster.client(1).get(TARGET).status, 404, "it was repaired as any other record");
    let mut client = cluster.client(1);
    let created = ask(&mut client, "PUT", "id=k", "If-None-Match: *\r\n", "new");
    assert_eq!(created.status, 201);
    assert_eq!(cluster.client(0).get(TARGET).body(), b"new");
}

/// Hints and the rebuild of a node with a new disk transfer the expiry together with the value.
#[test]
fn a_node_that_was_away_gets_the_expiry_with_the_value() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.kill(2);
    let plain = cluster.client(0).put("/v0/entity?id=k&ttl=1h", b"x");
    let conditional =
        ask(&mut cluster.client(1), "PUT", "id=l&ttl=1h", "If-None-Match: *\r\n", "x");
    let told = [expires(&plain).unwrap(), expires(&conditional).unwrap()];
    cluster.up(2);
    for (key, told) in ["k", "l"].into_iter().zip(told) {
        wait_until("the hint", || replica_expiries(&cluster, key) == [Some(told); 3]);
    }
    cluster.kill(2);
    cluster.wipe(2);
    cluster.up(2);
    cluster.wait_until_settled();
    for (key, told) in ["k", "l"].into_iter().zip(told) {
        wait_until("the stream", || replica_expiries(&cluster, key) == [Some(told); 3]);
    }
}

/// Returns, for each replica of a key, the expiry of its value.
fn replica_expiries(cluster: &Cluster, key: &str) -> Vec<Option<u64>> {
    let told = cluster.client(2).get(&format!("/ui/key?id={key}")).body();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let replicas = told["replicas"].as_array().unwrap();
    replicas.iter().map(|replica| replica["expires_ms"].as_u64()).collect()
}

#[test]
fn a_restart_changes_no_expiry() {
    let node = Node::start(&[]);
    let hour = expires(&node.client().put("/v0/entity?id=k&ttl=1h", b"x"));
    let second = node.client().put("/v0/entity?id=l&ttl=1s", b"x");
    let node = Node::start_with(kvorum(), node.kill(), &[]);
    let mut client = node.client();
    assert_eq!(expires(&client.get(TARGET)), hour);
    wait_until("its expiry", || client.get("/v0/entity?id=l").status == 404);
    assert!(now_ms() >= expires(&second).unwrap());
    let node = Node::start_with(kvorum(), node.stop(), &[]);
    assert_eq!(node.client().get("/v0/entity?id=l").status, 404, "it stays gone");
    assert_eq!(node.client().get(TARGET).status, 200);
}

/// Writes a clock bound that is a year ahead into the store of a stopped node.
fn plant_bound(data: &Path) {
    let engine = Engine::open(Arc::new(RealDisk::open(data).unwrap()), Options::default()).unwrap();
    let bound = ((now_ms() + 365 * 86_400_000) * 1000) << 12;
    let (mut batch, version) = (Batch::new(), Version { time: u64::MAX >> 1, origin: 0 });
    batch.put(Space::Node, b"clock-bound", version, &bound.to_le_bytes()).unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
    engine.close().unwrap();
}

/// A time to live counts from the wall clock, unless versions of other nodes are later; a single
/// node has no other nodes.
#[test]
fn a_node_alone_whose_clock_was_ahead_adds_a_time_to_live_to_its_wall_clock() {
    let data = Node::start(&[]).stop();
    plant_bound(&data.path().join("data"));
    let node = Node::start_with(kvorum(), data, &["--max-ttl", "1h"]);
    let mut client = node.client();
    for (method, query, headers) in [
        ("PUT", "id=plain&ttl=1h", ""),
        ("PUT", "id=lock&ttl=1h", "If-None-Match: *\r\n"),
        ("PUT", "id=lock&ttl=1h", "If-Match: *\r\n"),
        ("PUT", "id=once&ttl=1h", "Idempotency-Key: w\r\n"),
        ("POST", "id=count&add=1&ttl=1h", ""),
    ] {
        let asked = now_ms();
        let answer = ask(&mut client, method, query, headers, "");
        assert!([200, 201].contains(&answer.status), "{query}: {}", answer.status);
        in_seconds(&answer, 3600, asked);
    }
    let taken = ask(&mut client, "PUT", "id=short&ttl=1s", "If-None-Match: *\r\n", "a");
    assert_eq!(taken.status, 201);
    wait_until("that the lease ends", || {
        ask(&mut client, "PUT", "id=short&ttl=1s", "If-None-Match: *\r\n", "b").status == 201
    });
}
