//! A node whose disk is slow to sync.

use std::time::{Duration, Instant};

use kit::Failure;
use kit::faults::strace::Strace;

use crate::cluster::Cluster;

/// Duration of the load: the clock's bound, which is up to 2 s ahead, is reached several times.
const LOAD: Duration = Duration::from_secs(10);

/// A slow disk delays the bound of the node's clock. Writes through the node wait for the bound:
/// plain writes, additions, and writes with an idempotency key. The other nodes store the writes.
#[test]
fn writes_through_a_node_with_a_slow_disk_wait_for_its_clock() {
    let cluster = Cluster::start(3, &["--deadline", "20s"]);
    cluster.wait_until_settled();
    let directory = tempfile::tempdir().unwrap();
    let (pid, log) = (cluster.pid(0), directory.path().join("strace"));
    let slow = match Strace::attach_to(pid, "fdatasync", "delay_enter=700000", &log) {
        Err(Failure::Skipped(why)) => return eprintln!("skipped: {why}"),
        slow => slow.unwrap(),
    };
    let mut client = cluster.client(0);
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < LOAD {
        number += 1;
        let plain = client.put(&format!("/v0/entity?id=plain-{number}"), b"v");
        assert_eq!(plain.status, 201, "{}", String::from_utf8_lossy(&plain.body()));
        for header in [String::new(), format!("Idempotency-Key: {number}\r\n")] {
            client.send(format!(
                "POST /v0/entity?id=sum-{}&add=1 HTTP/1.1\r\nHost: localhost\r\n{header}\
                 Content-Length: 0\r\n\r\n",
                number % 9
            ));
            let added = client.response();
            let body = String::from_utf8_lossy(&added.body()).into_owned();
            assert_eq!(added.status, 200, "{header:?}: {body}");
        }
    }
    drop(slow);
}
