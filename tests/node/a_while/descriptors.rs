//! Nodes with few file descriptors: the reserve for probes, and a refused start.

use crate::process::Node;
use crate::unusable::{limited, serve};

/// Clients that hold all permitted connections leave the descriptors that a probe needs.
#[test]
fn a_node_with_few_descriptors_answers_probes_or_does_not_start() {
    let loops = &["--loops", "2"][..];
    let node = Node::start_with(limited("ulimit -n 40"), tempfile::tempdir().unwrap(), loops);
    let uploads: Vec<_> = (0..30)
        .map(|_| {
            let mut client = node.client();
            client.send("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n");
            client.send("Content-Length: 10\r\n\r\nabc");
            client
        })
        .collect();
    assert_eq!(node.client().get("/healthz").status, 200);
    assert_eq!(node.client().get("/readyz").status, 200);
    drop(uploads);
    let root = tempfile::tempdir().unwrap();
    let of_three = "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3";
    let own = ["--cluster", of_three, "--advertise", "http://127.0.0.1:1"];
    let output = serve(limited("ulimit -n 40"), &root.path().join("data"), &[loops, &own].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "the limit of open files is 40, and a node with 2 event loops and 2 other nodes \
        in its list needs 46";
    assert!(said.lines().last().unwrap().contains(expected), "{said}");
}
