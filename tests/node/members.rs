//! The membership that a node uses: from the layout that another node sends, and after a restart
//! from the layout on its disk. The test simulates all other nodes.

use std::sync::Arc;

use protocol::handshake::HandshakeIdentity;
use protocol::layout::{Joiner, Layout, PlanChange, Voter, VoterId};
use protocol::{
    Incarnation, Layouts, Logs, Member, NodeId, OwnCluster, Proof, Proofs, View, Views,
};
use serde_json::Value;

use crate::peers::{CLUSTER, SECRET, USUAL, good_b, perform_handshake, secrets};
use crate::process::{Node, kvorum, run, wait_until};

fn first() -> Layout {
    Layout::first(&USUAL, |id| format!("http://127.0.0.1:{}", id.0 + 1))
}

/// Returns the layout at the end of the change `change` of `base`.
fn apply_plan(base: &Layout, change: &PlanChange) -> Layout {
    let mut layout = base.plan_change(change, |_| Some(VoterId(1))).unwrap();
    while let Some(next) = layout.next_stage() {
        layout = next;
    }
    layout
}

pub(crate) fn c_joins() -> Layout {
    let member = Member { name: "c".to_owned(), zone: "z".to_owned(), weight: 1 };
    let add =
        vec![Joiner { member, url: "http://127.0.0.1:3".to_owned(), disk: Some(Incarnation(7)) }];
    apply_plan(&first(), &PlanChange { add, ..PlanChange::default() })
}

fn a_leaves() -> Layout {
    let remove = vec!["a".to_owned()];
    apply_plan(&first(), &PlanChange { remove, replicas: Some(1), ..PlanChange::default() })
}

/// Connects to node a as node b, which has the later layout `layout`.
pub(crate) fn tells(node: &Node, layout: &Layout) {
    let met = perform_handshake(node, &good_b()).outcome.unwrap();
    let topology = layout.topology().unwrap();
    let own = topology.find("b").unwrap();
    let view = View::new_settled(layout.epoch, layout.placement_epoch, topology);
    let voter = Voter { node: own, id: Some(VoterId(1)), is_first: true };
    let layouts = Arc::new(Layouts::first(voter, layout.clone()));
    let known =
        (Arc::new(Logs::first(Incarnation(7))), Arc::new(Proofs::new(Proof::default())), layouts);
    let views = Arc::new(Views::new(view));
    views.note_name(NodeId(0), "a");
    let cluster = Arc::new(OwnCluster::new(met.cluster));
    let later = HandshakeIdentity::new(views, own, cluster, secrets(SECRET), known);
    let _ = perform_handshake(node, &Arc::new(later));
}

pub(crate) fn start(data: tempfile::TempDir, args: &[&str]) -> Node {
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", SECRET);
    Node::start_with(command, data, args)
}

/// Starts node a of a cluster of two nodes.
pub(crate) fn node() -> Node {
    let args = ["--advertise", "http://127.0.0.1:1", "--cluster", CLUSTER];
    start(tempfile::tempdir().unwrap(), &args)
}

pub(crate) fn json(node: &Node, target: &str) -> Value {
    serde_json::from_slice(&node.client().get(target).body()).unwrap()
}

fn wait_for_layout(node: &Node, layout: &Layout) {
    wait_until("it goes by the layout", || json(node, "/v0/status")["epoch"] == layout.epoch);
}

/// Returns the names and URLs of the other nodes, as a node's status reports them.
pub(crate) fn peers(node: &Node) -> Vec<(String, String)> {
    let status = json(node, "/v0/status");
    let text = |peer: &Value, field: &str| peer[field].as_str().unwrap().to_owned();
    let peers = status["peers"].as_array().unwrap().iter();
    peers.map(|peer| (text(peer, "name"), text(peer, "url"))).collect()
}

#[test]
fn a_joined_node_is_a_peer_and_a_start_needs_no_list() {
    let node = node();
    let pair = |name: &str, url: &str| (name.to_owned(), url.to_owned());
    assert_eq!(peers(&node), [pair("b", "http://127.0.0.1:2")]);
    let layout = c_joins();
    tells(&node, &layout);
    wait_for_layout(&node, &layout);
    let both = [pair("b", "http://127.0.0.1:2"), pair("c", "http://127.0.0.1:3")];
    assert_eq!(peers(&node), both);
    let metrics = String::from_utf8(node.client().get("/metrics").body()).unwrap();
    assert!(metrics.contains("kvorum_peer_connected_loops{peer=\"c\"} 0"), "{metrics}");
    let cluster = json(&node, "/v0/cluster");
    assert_eq!(cluster["nodes"].as_array().unwrap().len(), 3, "{cluster}");
    wait_until("it looks for the new node", || {
        cluster_error(&node, "c").is_some_and(|error| !error.is_empty())
    });

    // Restarts the node without a list, and then with a list that has another address of node b.
    let data = node.stop();
    let node = start(data, &[]);
    assert_eq!((peers(&node), &json(&node, "/v0/status")["name"]), (both.to_vec(), &"a".into()));
    assert_eq!(json(&node, "/v0/status")["url"], "http://127.0.0.1:1");
    let moved = CLUSTER.replace("127.0.0.1:2", "127.0.0.1:9");
    let node = start(node.stop(), &["--advertise", "http://127.0.0.1:1", "--cluster", &moved]);
    let both = [pair("b", "http://127.0.0.1:9"), pair("c", "http://127.0.0.1:3")];
    assert_eq!(peers(&node), both, "the list wins for whom it names");
    let (_, log) = {
        node.signal(rustix::process::Signal::TERM);
        node.wait()
    };
    let warned = log.lines().filter(|line| line.contains("--cluster differs from")).count();
    assert_eq!(warned, 1, "{log}");
    assert!(log.contains("node c is missing"), "{log}");
}

/// Returns the error that a node's `/v0/cluster` reports for the node `name`; `None` without an
/// error.
fn cluster_error(node: &Node, name: &str) -> Option<String> {
    let cluster = json(node, "/v0/cluster");
    let row = cluster["nodes"].as_array().unwrap().iter().find(|row| row["name"] == name)?;
    row["error"].as_str().map(str::to_owned)
}

#[test]
fn a_removed_node_serves_nothing_and_says_why() {
    let node = node();
    let layout = a_leaves();
    tells(&node, &layout);
    wait_for_layout(&node, &layout);
    let is_removed = |node: &Node| {
        for (method, target) in [
            ("GET", "/v0/entity?id=k"),
            ("PUT", "/v0/entity?id=k"),
            ("DELETE", "/v0/entity?id=k"),
            ("GET", "/v0/entities?start=a"),
        ] {
            let answer = node.client().request(method, target, b"");
            assert_eq!(answer.status, 503, "{method} {target}");
            let problem: Value = serde_json::from_slice(&answer.body()).unwrap();
            assert_eq!(problem["type"], "removed", "{problem}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("epoch {}", layout.epoch)), "{detail}");
            assert!(detail.contains("with an empty directory and --join"), "{detail}");
            assert_eq!(
                problem["outcome"],
                if method == "GET" { Value::Null } else { "none".into() }
            );
        }
        let ready = node.client().get("/readyz");
        assert_eq!(ready.status, 503);
        assert!(ready.body().starts_with(b"removed: "));
        assert_eq!(json(node, "/v0/status")["membership"], "removed");
        for command in [&["status"][..], &["cluster", "status"]] {
            let url = format!("http://{}", node.address);
            let output = run(&[command, &["--url", &url]].concat());
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(1), "{text}");
            let others = |line: &str| line.starts_with("b ") && line.contains("not asked");
            assert!(text.lines().any(others), "{text}");
            assert!(text.contains("a was removed from the cluster: it serves no requests, and"));
            assert!(text.contains("ask one of them (--url)"), "{text}");
            let ready = run(&["status", "--ready", "--url", &url]);
            assert_eq!(ready.status.code(), Some(1));
            assert!(ready.stdout.starts_with(b"removed: "));
            assert!(!text.contains("left the cluster") && !text.contains("down"), "{text}");
        }
        for target in ["/v0/cluster", "/metrics", "/admin/layout", "/admin/repair", "/healthz"] {
            assert_eq!(node.client().get(target).status, 200, "{target}");
        }
    };
    is_removed(&node);
    let node = start(node.stop(), &[]);
    is_removed(&node);
    let node = start(node.stop(), &["--advertise", "http://127.0.0.1:1", "--cluster", CLUSTER]);
    is_removed(&node);
    node.stop();
}
