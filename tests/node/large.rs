//! Large values: the limit on the memory that they use, and the node's behavior when concurrent
//! requests need more memory.

use std::thread;

use kit::raw::Client;

use crate::cluster::Cluster;
use crate::process::{Node, wait_until};

const MIB: usize = 1 << 20;

/// Returns the value of a gauge or counter in `/metrics`. Panics if the metric is missing.
fn metric(client: &mut Client, name: &str) -> f64 {
    let text = String::from_utf8(client.get("/metrics").body()).unwrap();
    let is_it = |line: &&str| line.split([' ', '{']).next() == Some(name);
    let line = text.lines().find(is_it).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn key(number: usize) -> String {
    format!("/v0/entity?id=large{number}")
}

fn value(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + number) as u8).collect()
}

/// Starts an upload of 1 MiB, and sends only its first byte.
fn begin(mut client: Client) -> Client {
    let head = "PUT /v0/entity?id=slow HTTP/1.1\r\nHost: localhost\r\n";
    client.send(format!("{head}Content-Length: {MIB}\r\n\r\nx"));
    client
}

/// A write that waits for memory is neither sent to replicas nor refused before its deadline.
#[test]
fn many_large_writes_at_once_are_all_done() {
    let cluster = Cluster::start(3, &["--sync", "interval", "--deadline", "30s"]);
    cluster.wait_until_settled();
    thread::scope(|scope| {
        for number in 0..24 {
            let mut client = cluster.client(0);
            scope.spawn(move || {
                for round in 0..2 {
                    let put = client.put(&key(number), &value(number + round, MIB));
                    assert_eq!(put.status, 201, "{:?}", String::from_utf8_lossy(&put.body()));
                }
            });
        }
    });
    for number in 0..24 {
        let got = cluster.client(number % 3).get(&key(number));
        assert!(got.status == 200 && got.body() == value(number + 1, MIB), "{}", got.status);
    }
}

/// An upload without a `Content-Length` reserves memory only for its beginning, until the memory
/// for the longest value is free.
#[test]
fn uploads_of_unknown_length_wait_for_each_other_and_are_all_done() {
    const LEN: usize = 300_000;
    let node = Node::start(&["--memory", "64MiB", "--deadline", "30s"]);
    thread::scope(|scope| {
        for number in 0..12 {
            let mut client = node.client();
            scope.spawn(move || {
                // A conditional write reserves memory for two copies of its value.
                let condition = if number % 3 == 0 { "If-None-Match: *\r\n" } else { "" };
                client.send(format!(
                    "PUT {} HTTP/1.1\r\nHost: localhost\r\n{condition}\
                     Transfer-Encoding: chunked\r\n\r\n",
                    key(number)
                ));
                for chunk in value(number, LEN).chunks(40_000) {
                    client.send(
                        [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat(),
                    );
                }
                client.send("0\r\n\r\n");
                let put = client.response();
                assert_eq!(put.status, 201, "{:?}", String::from_utf8_lossy(&put.body()));
            });
        }
    });
    let mut client = node.client();
    for number in 0..12 {
        let got = client.get(&key(number));
        assert!(got.status == 200 && got.body() == value(number, LEN), "{}", got.status);
    }
    wait_until("all memory's being free", || {
        metric(&mut client, "kvorum_request_body_bytes") == 0.0
    });
}

/// A write that waits until its deadline is refused before any of it is sent to replicas.
#[test]
fn large_writes_that_find_no_room_are_refused_as_not_done() {
    let args = ["--sync", "interval", "--memory", "64MiB", "--deadline", "250ms"];
    let cluster = Cluster::start(3, &args);
    cluster.wait_until_settled();
    // Two uploads that do not end reserve all the memory for bodies.
    let uploads: Vec<_> = (0..2).map(|_| begin(cluster.client(0))).collect();
    let mut client = cluster.client(0);
    wait_until("taking the memory", || {
        metric(&mut client, "kvorum_request_body_bytes") >= 2.0 * MIB as f64
    });
    let put = cluster.client(0).put(&key(1), &value(1, MIB));
    // The node aborts the uploads after they have reserved their memory for a second, so the write
    // may also succeed.
    if put.status != 201 {
        assert_eq!((put.status, put.header("retry-after")), (503, Some("1")));
        assert_eq!(put.json()["outcome"], "none");
    }
    drop(uploads);
}

#[test]
fn slow_uploads_are_aborted_for_waiting_requests() {
    let node = Node::start(&["--memory", "64MiB", "--deadline", "10s"]);
    let mut good = node.client();
    assert_eq!(good.put(&key(0), &value(0, MIB)).status, 201);
    let mut slow: Vec<_> = (0..4).map(|_| begin(node.client())).collect();
    wait_until("taking the memory", || {
        metric(&mut good, "kvorum_request_body_bytes") >= 2.0 * MIB as f64
    });
    let got = good.get(&key(0));
    assert!(got.status == 200 && got.body() == value(0, MIB), "reads have memory of their own");
    for number in 1..6 {
        assert_eq!(good.put(&key(number), &value(number, 100_000)).status, 201);
    }
    assert!(metric(&mut good, "kvorum_transfers_aborted_total") >= 1.0);
    let refused = slow.iter_mut().filter_map(|client| {
        client.stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        client.try_response().ok()
    });
    let refused: Vec<_> = refused.collect();
    assert!(!refused.is_empty());
    for answer in refused {
        assert!(answer.status == 503 && answer.closes(), "{answer:?}");
        assert_eq!(answer.json()["outcome"], "none");
    }
}

/// After a restart with less memory, a node serves large values one at a time.
#[test]
fn a_value_larger_than_all_the_memory_for_answers_is_served() {
    let node = Node::start(&["--max-value", "8MiB"]);
    assert_eq!(node.client().put(&key(0), &value(0, 8 * MIB)).status, 201);
    assert_eq!(node.client().put(&key(1), &value(1, MIB)).status, 201);
    let data = node.stop();
    let node = Node::start_with(crate::process::kvorum(), data, &["--memory", "64MiB"]);
    for number in [0, 1, 0] {
        let got = node.client().get(&key(number));
        let len = if number == 0 { 8 * MIB } else { MIB };
        assert!(got.status == 200 && got.body() == value(number, len), "{}", got.status);
    }
}

#[test]
fn a_node_with_very_much_memory_serves() {
    let node = Node::start(&["--memory", "64GiB"]);
    assert_eq!(node.client().put(&key(0), b"v").status, 201);
    assert_eq!(node.client().get(&key(0)).body(), b"v");
}
