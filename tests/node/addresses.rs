//! Nodes that restart at other addresses: joining nodes find the members there, and the members
//! find a node that is in no list.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use kit::ports;
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::moves::{apply_change, cluster_command, layout, plan_change, text, wait_for_epoch};
use crate::process::{Node, kvorum, wait_until};

const KEYS: usize = 100;

fn write(cluster: &Cluster) {
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        let put = client.put(&format!("{}&ack=3&from=3", key(number)), b"value");
        assert_eq!(put.status, 201, "{}", text(&put.body()));
    }
}

fn url(at: SocketAddr) -> String {
    format!("http://{at}")
}

/// Starts node d, which joins the cluster of `n0`, or restarts d if it is already a member.
fn d_starts(cluster: &Cluster, at: SocketAddr, data: TempDir, more: &[&str]) -> JoinHandle<Node> {
    let of = url(cluster.address(0));
    let args = ["--join", &of, "--name", "d", "--log", "warn"];
    let args: Vec<String> = args.iter().chain(more).map(|arg| (*arg).to_owned()).collect();
    thread::spawn(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Node::start_at(&at.to_string(), kvorum(), data, &args)
    })
}

fn d_asks(cluster: &Cluster, at: SocketAddr) -> JoinHandle<Node> {
    let starts = d_starts(cluster, at, tempfile::tempdir().unwrap(), &[]);
    wait_until("it asks to join", || !layout(cluster, 0)["joining"].is_null());
    starts
}

/// Returns the URL of each peer, and true if the node has a connection to the peer.
fn peers(node: &Node) -> Vec<(String, bool)> {
    let status: Value = serde_json::from_slice(&node.client().get("/v0/status").body()).unwrap();
    let peers = status["peers"].as_array().unwrap().iter();
    peers.map(|peer| (peer["url"].as_str().unwrap().to_owned(), peer["up"] == true)).collect()
}

#[test]
fn a_node_joins_a_cluster_that_moved_to_other_addresses() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    // After the first change, nodes use the decided layout instead of `--cluster`.
    assert_eq!(apply_change(&cluster, 0, &["--council", "n0"]), 2);
    (0..3).for_each(|node| wait_for_epoch(&cluster, node, 2));
    (0..3).for_each(|node| cluster.stop(node));
    let before = url(cluster.address(2));
    cluster.change_all_addresses();
    (0..3).for_each(|node| cluster.up(node));
    cluster.wait_until_settled();

    let starts = d_asks(&cluster, ports::addresses(1)[0]);
    let plan = plan_change(&cluster, 0, &["--add", "d", "--remove", "n2"]);
    let warned = plan["warnings"].to_string();
    let said = format!("n0 is at {}, as far as", url(cluster.address(0)));
    assert!(warned.contains(&said), "{warned}");
    assert!(!warned.contains(&before), "it leaves: {warned}");
    assert_eq!(apply_change(&cluster, 0, &["--add", "d", "--remove", "n2"]), 6);
    let d = starts.join().unwrap();
    let urls = [0, 1].map(|node| (url(cluster.address(node)), true));
    wait_until("its reaching the others", || peers(&d) == urls);
    let mut client = d.client();
    for number in 0..KEYS {
        assert_eq!(client.get(&key(number)).body(), b"value", "{}", key(number));
    }
}

#[test]
fn a_node_that_nobody_lists_says_where_it_is_by_a_plan() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    let [old, new] = [1; 2].map(|count| ports::addresses(count)[0]);
    let starts = d_asks(&cluster, old);
    assert_eq!(apply_change(&cluster, 0, &["--add", "d"]), 5);
    let data = starts.join().unwrap().stop();
    let mut d = d_starts(&cluster, new, data, &["--advertise", &url(new)]).join().unwrap();
    wait_until("its reaching the others", || peers(&d).iter().all(|(_, up)| *up));
    let said = || {
        let status = cluster_command(&cluster, 0, &["status"]);
        text(&status.stdout)
    };
    wait_until("being told at which URL it is missed", || {
        said().contains(&format!("d does not answer n0 at {}: ", url(old)))
    });

    let of = ["--url", &url(new)];
    let command = |args: &[&str]| crate::process::run(&[&["cluster"], args, &of].concat());
    let told = command(&["plan", "--json"]);
    let plan: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(plan["moved_copies"], 0);
    let applied = command(&["apply", "--wait", plan["plan"].as_str().unwrap()]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    (0..3).for_each(|node| wait_for_epoch(&cluster, node, 6));
    wait_until("their reaching it", || {
        let status = cluster_command(&cluster, 0, &["status"]);
        status.status.success() && !said().contains("no connection")
    });
    let again = text(&command(&["plan"]).stderr);
    assert!(again.contains("nothing changes: the members, their weights and URLs"), "{again}");
    let mut log = String::new();
    let mut stderr = d.take_stderr();
    d.stop();
    std::io::Read::read_to_string(&mut stderr, &mut log).unwrap();
    assert!(log.contains("run `kvorum cluster plan` on this machine and apply"), "{log}");
}

#[test]
fn other_nodes_reach_a_listed_node_at_the_url_of_a_plan() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.stop(2);
    let list_before = cluster.change_address(2);
    cluster.up(2);
    let reaches = |cluster: &Cluster, node: usize| {
        let moved = url(cluster.address(2));
        wait_until("its reaching n2", || {
            let status = cluster.status(node);
            let peers = status["peers"].as_array().unwrap();
            peers.iter().any(|peer| peer["url"] == *moved && peer["up"] == true)
        });
    };
    assert_eq!(apply_change(&cluster, 2, &[]), 2);
    (0..2).for_each(|node| reaches(&cluster, node));

    // A restarted node still has the old list, which must not hide the decided URL.
    cluster.lists(list_before);
    cluster.stop(0);
    cluster.up(0);
    reaches(&cluster, 0);
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        assert_eq!(client.get(&format!("{}&ack=3", key(number))).status, 200, "{number}");
    }
}
