//! The end of an upgrade: `kvorum cluster finalize`, and the store formats in the status. This
//! release writes only one store format, so these tests raise no store;
//! `testing/torture/finalize.sh` raises the stores of a build that writes two formats.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::moves::{cluster_command, text};
use crate::process::{Node, run, wait_until};
use crate::tokens::{ADMIN, Files, single_node, status};

fn post(node: &Node, target: &str) -> (u16, Value) {
    let answer = node.client().request("POST", target, b"");
    (answer.status, serde_json::from_slice(&answer.body()).unwrap())
}

#[test]
fn with_nothing_to_raise_the_command_says_so() {
    let cluster = Cluster::start(3, &[]);
    wait_until("all see each other", || cluster_command(&cluster, 1, &["status"]).status.success());
    for _ in 0..2 {
        let done = cluster_command(&cluster, 1, &["finalize"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let expected = "nothing to do: all stores have format 1, the latest that the asked node \
            writes: n0, n1, n2\n";
        assert_eq!(text(&done.stdout), expected);
    }
    let done = cluster_command(&cluster, 0, &["finalize", "--json"]);
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    let expected = serde_json::json!({
        "format": 1, "raised": [], "unchanged": ["n0", "n1", "n2"],
    });
    assert_eq!(json, expected);
}

#[test]
fn while_a_member_is_down_nothing_is_raised_and_the_member_is_named() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.kill(2);
    let before = std::fs::read(cluster.data(0).join("STORE")).unwrap();
    let refused = cluster_command(&cluster, 0, &["finalize"]);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("no store was raised to format 1: n2 does not tell its"), "{said}");
    assert!(said.contains("--remove-dead n2"), "{said}");
    assert_eq!(std::fs::read(cluster.data(0).join("STORE")).unwrap(), before);
    cluster.up(2);
    wait_until("it is back", || cluster_command(&cluster, 0, &["finalize"]).status.success());
}

#[test]
fn the_status_tells_the_store_formats() {
    let cluster = Cluster::start(2, &[]);
    let formats = |json: &Value| {
        let of = |name: &str| json[name].as_u64().unwrap();
        [of("store_format"), of("oldest_store_format"), of("newest_store_format")]
    };
    let own = cluster.status(0);
    assert_eq!(formats(&own), [1, 1, 1]);
    wait_until("both are there", || cluster_command(&cluster, 0, &["status"]).status.success());
    let shown = cluster_command(&cluster, 0, &["status", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    for node in shown["nodes"].as_array().unwrap() {
        assert_eq!(formats(node), [1, 1, 1], "{node}");
    }
    let shown = text(&cluster_command(&cluster, 0, &["status"]).stdout);
    assert!(shown.lines().any(|line| line == "store format 1"), "{shown}");
}

#[test]
fn a_node_raises_its_store_to_no_format_that_it_does_not_write() {
    let node = Node::start(&[]);
    assert_eq!(
        post(&node, "/admin/store-format?format=1"),
        (
            200,
            serde_json::json!({
                "store_format": 1,
            })
        )
    );
    let (status, refused) = post(&node, "/admin/store-format?format=2");
    assert_eq!((status, &refused["type"]), (409, &"finalize-refused".into()));
    assert_eq!(
        refused["detail"],
        "this release writes the store formats 1 to 1, and not 2: nothing was changed"
    );
    for query in ["", "?format=0", "?format=-1", "?format=x", "?format=1&all=true"] {
        assert_eq!(post(&node, &format!("/admin/store-format{query}")).0, 400, "{query}");
    }
    assert_eq!(post(&node, "/admin/finalize?format=2").0, 400);
}

#[test]
fn only_administrators_finalize() {
    let files = Files::new();
    let node = single_node(&files);
    let data = files.create(node.address, "data", &[]);
    let ops = files.create(node.address, "ops", &["--for", "admin"]);
    for target in ["/admin/finalize", "/admin/store-format?format=1"] {
        for (token, expected) in [("", 401), (data.as_str(), 403), (&ops, 200), (ADMIN, 200)] {
            assert_eq!(status(node.address, "POST", target, token), expected, "{target} {token}");
        }
        assert_eq!(status(node.address, "GET", target, ADMIN), 405, "{target}");
    }
    let url = format!("http://{}", node.address);
    let refused = run(&["cluster", "finalize", "--url", &url]);
    assert!(!refused.status.success());
}
