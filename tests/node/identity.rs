//! Ownership of a data directory: errors of a start with another name or topology.

use crate::members::json;
use crate::process::{Node, kvorum, run};

const OWN: &str = "http://127.0.0.1:1";
const THREE: &str = "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3";

/// Starts a node with these arguments, and stops it; returns its data.
fn start_and_stop(data: tempfile::TempDir, args: &[&str]) -> tempfile::TempDir {
    Node::start_with(kvorum(), data, args).stop()
}

/// Asserts that a node with this data refuses to start, with one line that contains `named` and the
/// path.
fn assert_refused(data: &tempfile::TempDir, args: &[&str], named: &str) {
    let path = data.path().join("data");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data", path.to_str().unwrap()];
    let output = run(&[&serve, args].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    // Warnings may precede the error in the log.
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("kvorum: ") && line.contains(named), "{said}");
    assert!(line.contains(path.to_str().unwrap()), "{said}");
}

#[test]
fn another_topology_or_name_is_refused_and_changes_nothing() {
    let cluster = ["--advertise", OWN, "--cluster", THREE];
    let data = start_and_stop(tempfile::tempdir().unwrap(), &cluster);
    let with = |list: &str, named: &str| {
        assert_refused(&data, &["--advertise", OWN, "--cluster", list], named);
    };
    with("a=http://127.0.0.1:1,b=http://127.0.0.1:2", "node c is in the data directory's list");
    with(&format!("{THREE},d=http://127.0.0.1:4"), "node d is in our list");
    with("b=http://127.0.0.1:1,a=http://127.0.0.1:2,c=http://127.0.0.1:3", "this is node b");
    with(&THREE.replace("127.0.0.1:2", "127.0.0.1:2;zone=x"), "node b has zone x");
    assert_refused(&data, &[], "more differences");
    assert_refused(&data, &[&cluster[..], &["--replicas", "2"]].concat(), "replicas: 2");
    let moved = "c=http://127.0.0.1:9,b=http://127.0.0.1:8,a=http://127.0.0.1:1";
    let data = start_and_stop(data, &["--advertise", OWN, "--cluster", moved]);
    start_and_stop(data, &cluster);
}

#[test]
fn a_node_alone_keeps_its_name_wherever_it_listens() {
    let origin = |node: &Node| {
        let put = node.client().put("/v0/entity?id=k", b"v");
        put.header("etag").unwrap().rsplit('-').next().unwrap().to_owned()
    };
    let first = Node::start(&[]);
    let issued = origin(&first);
    let again = Node::start_with(kvorum(), first.stop(), &["--replicas", "1"]);
    assert_eq!(origin(&again), issued, "its versions go on under one name");
    let data = again.stop();
    let named = ["--advertise", OWN, "--cluster", "a=http://127.0.0.1:1"];
    let data = start_and_stop(data, &named);
    let data = start_and_stop(data, &named);
    let other = ["--advertise", OWN, "--cluster", "b=http://127.0.0.1:1"];
    assert_refused(&data, &other, "this is node b, but the directory belongs to node a");
    assert_refused(&data, &["--advertise", OWN, "--cluster", THREE], "node b is in our list");
    start_and_stop(data, &[]);
}

/// A single node stores its layout because of a token or a quota. The stored layout must not fix
/// the name of a node that has no name yet.
#[test]
fn a_node_alone_gets_its_name_after_a_token_and_a_quota_were_made() {
    let first = Node::start(&[]);
    first.client().put("/v0/entity?id=k", b"v");
    let url = format!("http://{}", first.address);
    for made in [
        &["token", "create", "--name", "shop", "--url", &url][..],
        &["quota", "set", "shop/", "--hard", "1GiB", "--url", &url],
    ] {
        assert!(run(made).status.success(), "{made:?}");
    }
    let zoned = ["--zone", "y", "--weight", "4", "--replicas", "2"];
    let again = Node::start_with(kvorum(), first.stop(), &zoned);
    let seen = |node: &Node| {
        let layout = json(node, "/admin/layout");
        let own = &layout["nodes"][0];
        (own["zone"].clone(), own["weight"].clone(), layout["replicas"].clone())
    };
    assert_eq!(seen(&again), ("y".into(), 4.into(), 2.into()));
    let named = ["--name", "a", "--zone", "z", "--weight", "5"];
    let again = Node::start_with(kvorum(), again.stop(), &named);
    assert_eq!(seen(&again), ("z".into(), 5.into(), 3.into()));
    assert_eq!(json(&again, "/v0/status")["name"], "a");
    assert_eq!(again.client().get("/v0/entity?id=k").body(), b"v");
    let tokens = json(&again, "/admin/tokens");
    assert_eq!(tokens["tokens"][0]["name"], "shop", "{tokens}");
    let data = again.stop();
    assert_refused(&data, &["--name", "b"], "this is node b, but the directory belongs to node a");
    start_and_stop(data, &[]);
}
