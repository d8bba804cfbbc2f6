//! Changes of the members with what goes wrong in them: nodes that lost their disks, die or come
//! late, plans that make no sense any more, data and secrets of others.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::moves::{cluster_command, layout, moved, text};
use crate::process::{Node, kvorum, wait_until};

const KEYS: usize = 100;

fn url(at: SocketAddr) -> String {
    format!("http://{at}")
}

/// An address that nobody listens on.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A node that joins the cluster of `n0`, at an address that it keeps.
struct Joiner {
    name: &'static str,
    of: String,
    at: SocketAddr,
}

impl Joiner {
    fn new(cluster: &Cluster, name: &'static str) -> Self {
        Self { name, of: url(cluster.address(0)), at: free() }
    }

    fn args(&self) -> [&str; 6] {
        ["--join", &self.of, "--name", self.name, "--log", "warn"]
    }

    /// Starts it on that directory; it is up once it has its place.
    fn starts(&self, data: TempDir) -> JoinHandle<Node> {
        let args = self.args().map(str::to_owned);
        let at = self.at.to_string();
        thread::spawn(move || {
            Node::start_at(&at, kvorum(), data, &args.each_ref().map(String::as_str))
        })
    }

    /// The same, and it asks for a place.
    fn asks(&self, cluster: &Cluster) -> JoinHandle<Node> {
        let node = self.starts(tempfile::tempdir().unwrap());
        wait_until("it asks to join", || {
            let asking = layout(cluster, 0)["joining"].as_array().cloned().unwrap_or_default();
            asking.iter().any(|asker| asker["name"] == self.name)
        });
        node
    }

    /// Its start must be refused; why.
    fn refused(&self, data: &TempDir, more: impl FnOnce(&mut Command)) -> String {
        let mut command = kvorum();
        command.args(["serve", "--listen", &self.at.to_string(), "--data"]);
        command.arg(data.path().join("data")).args(self.args());
        more(&mut command);
        let refused = command.stdin(Stdio::null()).output().unwrap();
        assert!(!refused.status.success(), "{}", text(&refused.stdout));
        text(&refused.stderr)
    }
}

/// All of three copies.
fn write(cluster: &Cluster) {
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        let put = client.put(&format!("{}&ack=3&from=3", key(number)), b"value");
        assert_eq!(put.status, 201, "{}", text(&put.body()));
    }
}

fn read(cluster: &Cluster) {
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        let got = client.get(&key(number));
        assert_eq!((got.status, got.body()), (200, b"value".to_vec()), "{}", key(number));
    }
}

fn membership(node: &Node) -> String {
    let status = node.client().get("/v0/status").body();
    let status: Value = serde_json::from_slice(&status).unwrap();
    status["membership"].as_str().unwrap().to_owned()
}

#[test]
fn a_node_that_joined_and_lost_its_disk_takes_its_place_again() {
    let cluster = Cluster::start(3, &[]);
    cluster.settled();
    write(&cluster);
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    // Three of four hold a key: d is one of them for three quarters.
    moved(&cluster, 0, &["--add", "d"]);
    let d = starts.join().unwrap();
    wait_until("its being a member", || membership(&d) == "member");
    let held = d.client().get("/v0/entities?start=%00&local=true").chunks.len();
    assert!(held > KEYS / 2, "{held}");

    // As long as it is up, nobody takes its place.
    let other = Joiner { at: free(), ..Joiner::new(&cluster, "d") };
    let advertise = url(joiner.at);
    let why = other.refused(&tempfile::tempdir().unwrap(), |command| {
        command.args(["--advertise", &advertise]);
    });
    assert!(why.contains("node d is a member already, and up with another data dir"), "{why}");
    drop(d);
    let why = other.refused(&tempfile::tempdir().unwrap(), |_| ());
    assert!(why.contains(&format!("node d is a member already, at {advertise}")), "{why}");

    // Its name can't be given on by one plan either, and need not be.
    let again =
        cluster_command(&cluster, 0, &["plan", "--add", "d=http://h:1", "--remove-dead", "d"]);
    let why = text(&again.stderr);
    assert!(why.contains("it needs no plan: start it with --join and an empty directory"), "{why}");

    let d = joiner.starts(tempfile::tempdir().unwrap()).join().unwrap();
    wait_until("its being a member", || membership(&d) == "member");
    let mut local = d.client();
    wait_until("all that it held", || {
        local.get("/v0/entities?start=%00&local=true").chunks.len() == held
    });
    read(&cluster);
    assert_eq!(moved(&cluster, 1, &["--council", "n0,n1,d"]), 6, "it can be a councillor");
}
