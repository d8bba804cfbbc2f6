//! A node that is rebuilt while another node is down: the answers to clients, and the output of
//! `kvorum status`.

use kit::raw::Response;

use crate::cluster::{Cluster, key};
use crate::conditional::ask;
use crate::process::{run, wait_until};

const KEYS: usize = 4;

/// Starts three nodes with some keys. n2 is down. n1 has lost its disk, and its rebuild waits for
/// n2.
fn start_rebuild() -> Cluster {
    let mut cluster = Cluster::start(3, &["--deadline", "250ms"]);
    cluster.wait_until_settled();
    cluster.fill(KEYS, b"v");
    cluster.stop(2);
    cluster.stop(1);
    cluster.wipe(1);
    cluster.up(1);
    wait_until("a rebuild", || cluster.status(1)["membership"] == "rebuilding");
    cluster
}

/// Asserts that too few replicas answered, and that n1, which is being rebuilt, is not among them.
/// The coordinator asks n1 repeatedly, so a request to n1 may be pending at the deadline.
fn lacks_replicas(answer: &Response) {
    let json = answer.json();
    assert_eq!((answer.status, &json["type"]), (504, &"too-few-replicas".into()), "{json}");
    assert!(!json["answered"].as_array().unwrap().contains(&"n1".into()), "{json}");
}

#[test]
fn requests_that_lack_replicas_are_answered_504_while_one_is_down_and_one_is_rebuilt() {
    let cluster = start_rebuild();
    for node in 0..2 {
        let mut client = cluster.client(node);
        lacks_replicas(&client.get("/v0/entity?id=absent"));
        for number in 0..KEYS {
            let target = key(number).replace("/v0/entity?", "");
            lacks_replicas(&ask(&mut client, "PUT", &target, "If-Match: *\r\n", "w"));
            lacks_replicas(&ask(&mut client, "PUT", &target, "Idempotency-Key: w\r\n", "w"));
        }
    }
}

#[test]
fn status_tells_a_rebuild_that_takes_over_idempotency_keys_from_one_that_could_not() {
    let mut cluster = start_rebuild();
    let url = format!("http://{}", cluster.address(0));
    let said = || String::from_utf8(run(&["status", "--url", &url]).stdout).unwrap();
    let text = said();
    let is_told = |text: &str| {
        text.lines().any(|line| {
            line.starts_with("n1 ") && line.contains("idempotency key") && line.contains("rebuild")
        })
    };
    assert!(is_told(&text) && !text.contains("for another"), "{text}");
    cluster.up(2);
    cluster.wait_until_settled();
    let text = said();
    assert!(!text.contains("idempotency key"), "{text}");
}
