//! Processes with few file descriptors: the reserve for probes, a refused start, and the recovery
//! of a `kvorum dev`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::dev::Dev;
use crate::process::{Node, TIMEOUT, run};
use crate::unusable::{kvorum_with_limits, serve};

/// The node reserves descriptors for probes, even if clients use all permitted connections.
#[test]
fn a_node_with_few_descriptors_answers_probes_or_does_not_start() {
    let loops = &["--loops", "2"][..];
    let node =
        Node::start_with(kvorum_with_limits("ulimit -n 40"), tempfile::tempdir().unwrap(), loops);
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
    let output = serve(
        kvorum_with_limits("ulimit -n 40"),
        &root.path().join("data"),
        &[loops, &own].concat(),
    );
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "the limit of open files is 40, and a node with 2 event loops and 2 other nodes \
        in its list needs 46";
    assert!(said.lines().last().unwrap().contains(expected), "{said}");
}

/// While `kvorum dev` has no free descriptor, a client of its socket waits. Afterwards it serves
/// this client and later ones.
#[test]
fn a_kvorum_dev_that_was_out_of_descriptors_serves_its_socket_again() {
    let mut dev = Dev::start(1, &["--sync", "never", "--memory", "64MiB"]);
    let before = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(3), maximum: before.maximum };
    prlimit(Some(dev.pid()), Resource::Nofile, few).unwrap();
    let waits = UnixStream::connect(dev.data().join("dev.sock")).unwrap();
    (&waits).write_all(b"\"Nodes\"\n").unwrap();
    // The probes of the node need a descriptor too. They begin after the connection, so a failed
    // probe shows that `kvorum dev` has noticed the connection.
    assert!(dev.until("node-1 = does not answer").is_some());
    prlimit(Some(dev.pid()), Resource::Nofile, before).unwrap();
    waits.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = String::new();
    BufReader::new(&waits).read_line(&mut answer).unwrap();
    assert!(answer.contains("node-1"), "{answer}");
    let data = dev.data();
    let output = run(&["dev", "remove", "node-9", "--data", data.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("those that run are node-1"));
}
