//! Settings that change at a restart, and nodes of one cluster with different settings.

use crate::cluster::{Cluster, key};
use crate::process::wait_until;

/// Values that exceed a node's settings can still be read, if they were stored through nodes with
/// other settings or before a restart.
#[test]
fn what_is_stored_can_be_read_and_replicated_under_any_settings() {
    const LARGE: [&str; 4] = ["--memory", "512MiB", "--max-value", "8MiB"];
    const SMALL: [&str; 4] = ["--memory", "64MiB", "--max-value", "1KiB"];
    let mut cluster = Cluster::start(3, &LARGE);
    cluster.wait_until_settled();
    let value: Vec<u8> = (0..8 << 20).map(|at: u32| (at.wrapping_mul(31) >> 3) as u8).collect();
    let whole = |number: usize| [format!("key{number:04}\n").as_bytes(), &value].concat();
    for number in 0..3 {
        let put = || cluster.client(0).put(&format!("{}&ack=3", key(number)), &value).status == 201;
        wait_until("a large value's being stored", put);
    }
    let all = [whole(0), whole(1), whole(2)];
    cluster.kill(1);
    cluster.with(&SMALL);
    cluster.up(1);
    for node in 0..3 {
        for target in [format!("{}&ack=3", key(0)), format!("{}&ack=1&from=1", key(1))] {
            wait_until("reading a large value", || {
                let got = cluster.client(node).get(&target);
                assert!(got.status != 200 || got.body() == value);
                got.status == 200
            });
        }
        for votes in ["&ack=3", "&local=true"] {
            let range = cluster.client(node).get(&format!("/v0/entities?start=key{votes}"));
            assert_eq!(range.status, 200);
            assert!(range.chunks == all, "a range at {node} with {votes}");
        }
    }
    // Stores a hint for a node with little memory. Then that node loses its disk, and another such
    // node rebuilds it.
    cluster.kill(1);
    let waits = || cluster.status(0)["peers"].as_array().unwrap().iter().any(|p| p["hints"] != 0);
    wait_until("a hint's being kept", || {
        cluster.client(0).put(&key(3), &value).status == 201 && waits()
    });
    cluster.up(1);
    wait_until("the hint", || cluster.local(1).len() == 4);
    cluster.kill(2);
    cluster.up(2);
    cluster.kill(0);
    cluster.wipe(0);
    cluster.up(0);
    cluster.wait_until_settled();
    // The range needs 24 MiB of the node's memory, and may have to wait for it.
    wait_until("a range", || {
        let range = cluster.client(0).get("/v0/entities?start=%00&local=true");
        assert!(range.status != 200 || range.chunks.len() == 4, "{}", range.chunks.len());
        range.status == 200
    });
    assert_eq!(cluster.client(0).put(&key(4), &vec![0; 1025]).status, 413, "new ones are refused");
}
