//! A node with damaged files: its messages, and the remedy.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cluster::{Cluster, key};
use crate::process::{Node, kvorum, run, wait_until};

const KEYS: usize = 50;

/// Inverts a byte in each file with the suffix `ending`, at the first occurrence of `bytes`. At
/// least one file must have it.
fn flip_where(data: &Path, ending: &str, bytes: &[u8]) {
    let mut flips = 0;
    for file in fs::read_dir(data).unwrap().flatten() {
        let path = file.path();
        if path.to_string_lossy().ends_with(ending) {
            let mut content = fs::read(&path).unwrap();
            if let Some(at) = content.windows(bytes.len()).position(|part| part == bytes) {
                content[at] = !content[at];
                fs::write(path, content).unwrap();
                flips += 1;
            }
        }
    }
    assert!(flips > 0, "{ending} holds it somewhere");
}

/// No other node has a copy of a node's own state, and the node must not guess it. Its data exists
/// on the other nodes.
#[test]
fn a_node_that_can_not_read_its_own_state_is_replaced_by_an_empty_one() {
    let mut cluster = Cluster::start(3, &["--repair-interval", "off"]);
    cluster.wait_until_settled();
    for number in 0..KEYS {
        let put = cluster.client(0).put(&format!("{}&ack=3&from=3", key(number)), b"v");
        assert_eq!(put.status, 201);
    }
    for (ending, bytes, named) in [
        (".sst", &b"identity"[..], "the node's identity: "),
        ("MANIFEST", b"MANIFS", "MANIFEST is damaged at byte "),
    ] {
        cluster.stop(1);
        flip_where(&cluster.data(1), ending, bytes);
        let said = cluster.expect_refused_start(1);
        let last = said.lines().last().unwrap();
        assert!(last.contains(named) && last.contains(" is damaged at byte "), "{said}");
        for part in ["Nothing was changed", "kvorum status", "an empty one", "from=1"] {
            assert!(last.contains(part), "{part}: {said}");
        }
        let again = cluster.expect_refused_start(1);
        assert_eq!(again.lines().last(), Some(last), "nothing was changed");
        assert_eq!(cluster.client(0).get(&key(7)).status, 200, "two of three");
        cluster.wipe(1);
        cluster.up(1);
        cluster.wait_until_settled();
        assert_eq!(cluster.local(1).len(), KEYS);
    }
}

#[test]
fn a_single_node_is_sent_to_its_backup() {
    let node = Node::start(&[]);
    assert_eq!(node.client().put("/v0/entity?id=k", b"v").status, 201);
    let data = node.stop();
    let path = data.path().join("data");
    flip_where(&path, ".sst", b"identity");
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--data", path.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("Nothing was changed") && last.contains("a backup"), "{said}");
}

/// A single node runs no repair rounds that look for damage. A compaction finds the damage, and
/// must report it in the metrics and the status.
#[test]
fn a_table_that_a_compaction_can_not_read_is_counted() {
    let args = ["--sync", "never", "--memory", "64MiB"];
    let node = Node::start(&args);
    for number in 0..KEYS {
        assert_eq!(node.client().put(&key(number), &[b'v'; 1000]).status, 201);
    }
    let data = node.stop();
    flip_where(&data.path().join("data"), ".sst", b"key0000");
    let node = Node::start_with(kvorum(), data, &args);
    let mut client = node.client();
    let damaged = |client: &mut kit::raw::Client| {
        let status: Value = serde_json::from_slice(&client.get("/v0/status").body()).unwrap();
        let metrics = String::from_utf8(client.get("/metrics").body()).unwrap();
        let metric = metrics.lines().find_map(|line| line.strip_prefix("kvorum_damaged_tables "));
        (status["damaged_tables"].as_u64(), metric.and_then(|told| told.parse::<u64>().ok()))
    };
    assert_eq!(damaged(&mut client), (Some(0), Some(0)), "nothing has looked there");
    for number in 0..KEYS {
        assert_eq!(client.put(&key(number), b"new").status, 201);
    }
    let url = format!("http://{}", node.address);
    for _ in 0..2 {
        let output = run(&["compact", "--wait", "--url", &url]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(".sst is damaged at byte "), "{said}");
        assert_eq!(damaged(&mut client), (Some(1), Some(1)));
    }
    let status = run(&["status", "--url", &url]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains("cannot read parts of 1 of its tables: there are no other"), "{said}");
    assert_eq!(client.get(&key(0)).body(), b"new", "reads and writes go on");
}

/// The other replicas answer in place of the damaged one, so that no client sees an error.
#[test]
fn a_damaged_table_that_reads_find_is_reported_although_other_replicas_answer() {
    let mut cluster = Cluster::start(3, &["--sync", "never", "--memory", "64MiB"]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        let put = client.put(&format!("{}&ack=3", key(number)), &[b'v'; 1000]);
        assert_eq!(put.status, 201);
    }
    cluster.stop(1);
    flip_where(&cluster.data(1), ".sst", b"key0000");
    cluster.up(1);
    cluster.wait_until_settled();
    let damaged = || cluster.status(1)["damaged_tables"].as_u64();
    assert_eq!(damaged(), Some(0), "no request has read the block");
    assert_eq!(cluster.client(1).get(&key(0)).status, 200);
    wait_until("the damage is known", || damaged() == Some(1));
    let status = run(&["status", "--url", &format!("http://{}", cluster.address(0))]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains("n1 cannot read parts of 1 of its tables: kvorum repair"), "{said}");
    let local = cluster.client(1).get("/v0/entities?start=a&local=true");
    assert_eq!((local.status, &local.json()["type"]), (500, &Value::from("storage-failed")));
    let url = format!("http://{}", cluster.address(1));
    let round = run(&["repair", "--full", "--wait", "--url", &url]);
    assert!(round.status.success(), "{round:?}");
    assert_eq!(damaged(), Some(0), "the round has healed it");
    let log = cluster.stop_for_its_log(1);
    assert_eq!(log.matches("a table is damaged; a full repair round heals it").count(), 1, "{log}");
    assert!(log.contains(".sst is damaged at byte "), "{log}");
}
