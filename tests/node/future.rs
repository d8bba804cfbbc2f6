//! Future records, written with a clock that was far ahead: they hide no other records, block no
//! writes, are not copied to other nodes, and can be removed from a stopped node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use lsm::{Batch, Engine, Fields, Kind, Options, RealDisk, Record, Space, Version};

use crate::cluster::Cluster;
use crate::process::{run, wait_until};

const DAY_MICROS: u64 = 86_400_000_000;

/// Number of keys that have a future record on one node.
const KEYS: usize = 10;

fn tomorrow() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    (now + DAY_MICROS) << 12
}

fn target(key: usize, votes: &str) -> String {
    format!("/v0/entity?id=key{key}{votes}")
}

/// Opens a stopped node's store. Retries, because a process that another test has just forked may
/// have inherited the directory's lock, and releases it only when it executes its program.
fn open(data: &Path) -> Engine {
    let mut disk = None;
    wait_until("that the directory is free", || {
        disk = RealDisk::open(data).ok();
        disk.is_some()
    });
    Engine::open(Arc::new(disk.unwrap()), Options::default()).unwrap()
}

/// Writes future records into the store of the stopped node n2, as if its clock had been a day
/// ahead: values, and hints for the other nodes.
fn plant(data: &Path) {
    let engine = open(data);
    let (mut batch, origin) = (Batch::new(), protocol::origin_of("n2"));
    for key in 0..KEYS {
        let (key, version) = (format!("key{key}"), Version { time: tomorrow(), origin });
        let fields = Fields::new(Kind::Value, version);
        let record = Record::new(key.as_bytes(), &fields, b"from the future");
        batch.put(Space::Data, key.as_bytes(), version, b"from the future").unwrap();
        for peer in ["n0", "n1"] {
            let hint = [&[2], peer.as_bytes(), key.as_bytes()].concat();
            batch.put(Space::Hints, &hint, version, record.view().raw()).unwrap();
        }
    }
    engine.commit(std::iter::once(&batch)).unwrap();
    engine.close().unwrap();
}

/// Writes a clock bound that is a day ahead: n2 has promised to issue no version below it.
fn plant_bound(data: &Path) {
    let engine = open(data);
    let (mut batch, version) = (Batch::new(), Version { time: u64::MAX >> 1, origin: 0 });
    batch.put(Space::Node, b"clock-bound", version, &tomorrow().to_le_bytes()).unwrap();
    engine.commit(std::iter::once(&batch)).unwrap();
    engine.close().unwrap();
}

fn repair(data: &Path, more: &[&str]) -> (Option<i32>, String) {
    let data = data.to_str().unwrap();
    let output = run(&[&["repair-clock", "--data", data], more].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Starts a cluster in which every node has an old value of every key. Node n2 is down, and has a
/// future record of each key. Also returns the data directory of n2.
fn cluster_with_future_records() -> (Cluster, PathBuf) {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    for key in 0..KEYS {
        let put = cluster.client(0).put(&target(key, "&ack=3&from=3"), b"old");
        assert_eq!(put.status, 201);
    }
    cluster.kill(2);
    let data = cluster.data(2);
    plant(&data);
    (cluster, data)
}

#[test]
fn future_records_are_neither_returned_nor_spread_and_block_no_writes() {
    let (mut cluster, _data) = cluster_with_future_records();
    cluster.up(2);
    let for_others = |cluster: &Cluster| {
        let peers = cluster.status(2)["peers"].clone();
        peers.as_array().unwrap().iter().map(|peer| peer["hints_ahead_of_clock"].as_u64()).collect()
    };
    wait_until("both have future hints kept for them", || {
        let kept: Vec<_> = for_others(&cluster);
        kept == [Some(KEYS as u64); 2]
    });
    for key in 0..KEYS {
        for node in 0..3 {
            let get = cluster.client(node).get(&target(key, "&ack=2&from=3"));
            assert_eq!((get.status, get.body()), (200, b"old".to_vec()), "{key} from n{node}");
        }
    }
    for key in 0..KEYS {
        let node = key % 3;
        let (put, get) = (target(key, "&ack=2&from=3"), target(key, "&ack=2&from=3"));
        assert_eq!(cluster.client(node).put(&put, b"new").status, 201, "{key} at n{node}");
        for node in 0..3 {
            assert_eq!(cluster.client(node).get(&get).body(), b"new", "{key} from n{node}");
        }
        assert_eq!(cluster.client(node).delete(&put).status, 202);
        assert_eq!(cluster.client(node).get(&get).status, 404);
    }
    for node in 0..2 {
        assert_eq!(cluster.local(node), Vec::<Vec<u8>>::new(), "n{node} holds only tombstones");
    }
    assert_eq!(cluster.local(2).len(), KEYS, "n2 keeps what it has until its time comes");
}

#[test]
fn a_node_whose_clock_was_far_ahead_does_not_start_until_it_is_repaired() {
    let (mut cluster, data) = cluster_with_future_records();
    plant_bound(&data);
    let why = cluster.expect_refused_start(2);
    let last = why.lines().last().unwrap();
    assert!(last.starts_with("kvorum: ") && last.contains("kvorum repair-clock"), "{why}");
    assert!(last.contains(data.to_str().unwrap()), "{why}");

    let (code, said) = repair(&data, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("10 records and 20 hints") && said.contains("--yes"), "{said}");
    assert!(cluster.expect_refused_start(2).contains("repair-clock"), "nothing was changed");

    let (code, said) = repair(&data, &["--yes"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = repair(&data, &["--yes"]);
    assert!(code == Some(0) && said.contains("nothing to repair"), "{said}");
    cluster.up(2);
    cluster.wait_until_settled();
    for key in 0..KEYS {
        for node in 0..3 {
            let get = cluster.client(node).get(&target(key, "&ack=3&from=3"));
            assert_eq!((get.status, get.body()), (200, b"old".to_vec()), "{key} from n{node}");
        }
        let put = cluster.client(2).put(&target(key, "&ack=3&from=3"), b"new");
        assert_eq!(put.status, 201, "{key}");
    }
}

#[test]
fn repairing_a_clock_refuses_what_it_must_not_touch() {
    let empty = tempfile::tempdir().unwrap();
    let (code, said) = repair(empty.path(), &["--yes"]);
    assert!(code == Some(1) && said.contains("no node's data"), "{said}");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "and it is left alone");

    let node = crate::process::Node::start(&[]);
    let data = node.data.path().join("data");
    let (code, said) = repair(&data, &["--yes"]);
    assert!(code == Some(1) && said.contains("another process"), "{said}");
    let stopped = node.stop();
    let (code, said) = repair(&stopped.path().join("data"), &["--yes"]);
    assert!(code == Some(1) && said.contains("single-node"), "{said}");
}
