//! Partitions that move between real nodes while clients write and read.

use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, key};
use crate::process::pause_between_requests;
use crate::process::{run, wait_until};

/// Number of keys that each client writes and reads.
const KEYS: usize = 300;

pub(crate) fn cluster_command(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    let url = format!("http://{}", cluster.address(node));
    run(&[&["cluster"], args, &["--url", &url]].concat())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Makes a plan at a node; returns the plan.
pub(crate) fn plan_change(cluster: &Cluster, node: usize, change: &[&str]) -> Value {
    let planned = cluster_command(cluster, node, &[&["plan", "--json"], change].concat());
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    serde_json::from_slice(&planned.stdout).unwrap()
}

/// Applies a change and waits until it is complete; returns the epoch.
pub(crate) fn apply_change(cluster: &Cluster, node: usize, change: &[&str]) -> u64 {
    let plan = plan_change(cluster, node, change);
    let id = plan["plan"].as_str().unwrap();
    let applied = cluster_command(cluster, node, &["apply", "--wait", "--json", id]);
    assert!(applied.status.success(), "{change:?}: {}", text(&applied.stderr));
    let told: Value = serde_json::from_slice(&applied.stdout).unwrap();
    told["epoch"].as_u64().unwrap()
}

pub(crate) fn layout(cluster: &Cluster, node: usize) -> Value {
    serde_json::from_slice(&cluster.client(node).get("/admin/layout").body()).unwrap()
}

/// Clients that write, read and check values until `stop` is true.
struct Clients {
    stop: AtomicBool,
    done: AtomicU64,
}

struct Stops<'a>(&'a Clients);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Clients {
    /// Runs `what` while one client at each of these nodes writes and reads; returns the number of
    /// pairs of a write and a read.
    fn during(cluster: &Cluster, nodes: &[usize], what: impl FnOnce(&Self)) -> u64 {
        let clients = Self { stop: AtomicBool::new(false), done: AtomicU64::new(0) };
        thread::scope(|scope| {
            let stops = Stops(&clients);
            for (place, node) in nodes.iter().enumerate() {
                let clients = &clients;
                scope.spawn(move || clients.ask(cluster, *node, place * KEYS));
            }
            what(&clients);
            drop(stops);
        });
        clients.done.load(Ordering::Relaxed)
    }

    fn ask(&self, cluster: &Cluster, node: usize, first: usize) {
        let mut client = cluster.client(node);
        let mut written = vec![None; KEYS];
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let at = number * 7 % KEYS;
            let entity = key(first + at);
            if number % 3 == 2 && written[at].is_some() {
                let deleted = client.delete(&entity);
                assert_eq!(deleted.status, 202, "{entity}: {}", text(&deleted.body()));
                written[at] = None;
            } else {
                let value = format!("{number}");
                let put = client.put(&entity, value.as_bytes());
                assert_eq!(put.status, 201, "{entity}: {}", text(&put.body()));
                written[at] = Some(value);
            }
            let other = (at + number) % KEYS;
            let got = client.get(&key(first + other));
            let expected = written[other].as_ref().map(|value| value.as_bytes().to_vec());
            let found = (got.status == 200).then(|| got.body());
            assert!(
                got.status == 200 || got.status == 404,
                "{}: {}",
                got.status,
                text(&got.body())
            );
            assert_eq!(found, expected, "{}", key(first + other));
            self.done.fetch_add(1, Ordering::Relaxed);
            pause_between_requests();
        }
    }

    /// Waits until the clients have completed 50 more pairs of a write and a read.
    fn go_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        wait_until("clients go on", || self.done.load(Ordering::Relaxed) > before + 50);
    }
}

pub(crate) fn wait_for_epoch(cluster: &Cluster, node: usize, epoch: u64) {
    wait_until("the node goes by it", || layout(cluster, node)["epoch"] == epoch);
    assert_eq!(layout(cluster, node)["stage"], "settled");
}

#[test]
fn keys_move_there_and_back_under_load_and_no_request_fails() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    Clients::during(&cluster, &[0, 1, 3], |clients| {
        clients.go_on();
        let began = Instant::now();
        assert_eq!(apply_change(&cluster, 1, &["--weight", "n0=4"]), 5);
        assert!(began.elapsed() < Duration::from_secs(60), "it is a few hundred keys");
        clients.go_on();
        assert_eq!(apply_change(&cluster, 2, &["--weight", "n0=1"]), 9);
        clients.go_on();
        assert_eq!(apply_change(&cluster, 0, &["--replicas", "2"]), 13);
        assert_eq!(cluster.status(1)["settings"]["replicas"], 2);
        clients.go_on();
        assert_eq!(apply_change(&cluster, 3, &["--replicas", "3", "--weight", "n1=2"]), 17);
        clients.go_on();
    });
    (0..4).for_each(|node| wait_for_epoch(&cluster, node, 17));
}

#[test]
fn a_change_that_waits_for_a_node_can_be_aborted_and_requests_go_on() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    cluster.kill(3);
    let refused = cluster_command(&cluster, 0, &["abort"]);
    assert!(text(&refused.stderr).contains("no keys move"), "{}", text(&refused.stderr));
    Clients::during(&cluster, &[0, 1, 2], |clients| {
        // The change waits for n3, which is down. If n3 leaves, the change waits in the stage "read
        // old", because n3 may be the only node with some records. If n3 stays, the change waits
        // before any key moves.
        for (change, stage, epoch) in
            [(["--remove", "n3"], "read old", 4), (["--weight", "n1=5"], "prepare", 6)]
        {
            let plan = plan_change(&cluster, 0, &change);
            let asked = cluster_command(&cluster, 0, &["apply", plan["plan"].as_str().unwrap()]);
            assert!(asked.status.success(), "{}", text(&asked.stderr));
            (0..3).for_each(|node| {
                wait_until("the stage", || layout(&cluster, node)["stage"] == stage);
            });
            clients.go_on();
            // All nodes except n3 have reported their progress.
            wait_until("others have told", || {
                let layout = layout(&cluster, 0);
                layout["moves"].as_array().is_some_and(|moves| moves.len() == 3)
            });
            let another = cluster_command(&cluster, 1, &["plan", "--weight", "n1=2"]);
            let why = text(&another.stderr);
            assert!(why.contains("another change is under way, since epoch"), "{why}");
            let aborted = cluster_command(&cluster, 1, &["abort", "--wait"]);
            let told = text(&aborted.stdout);
            assert_eq!(told, format!("aborted: epoch {epoch}, with the previous members\n"));
            clients.go_on();
        }
    });
    cluster.up(3);
    (0..4).for_each(|node| wait_for_epoch(&cluster, node, 6));
    // Records that were copied for the aborted changes must do no harm.
    assert_eq!(apply_change(&cluster, 2, &["--weight", "n1=5"]), 10);
}

/// Length in bytes of a value, for which a node reserves memory before it reads or sends the value.
const LONG: usize = 200_000;

#[test]
fn long_values_of_conditional_writes_move_too() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(1);
    for number in 0..20 {
        let value = vec![b'a' + number as u8; LONG];
        let target = key(number);
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n\
             Content-Length: {LONG}\r\n\r\n"
        );
        client.send([head.as_bytes(), &value].concat());
        let put = client.response();
        assert_eq!(put.status, 201, "{}", text(&put.body()));
    }
    assert_eq!(apply_change(&cluster, 1, &["--weight", "n0=8"]), 5);
    for number in 0..20 {
        let got = cluster.client(0).get(&key(number));
        assert_eq!(got.body(), vec![b'a' + number as u8; LONG], "{}", key(number));
    }
}

/// Of the two removed nodes one is down, and the other is suspended and so unreachable. Of the
/// members that they knew, only one remains to inform them.
#[test]
fn a_node_removed_while_unreachable_learns_of_it_from_any_member() {
    let mut cluster = Cluster::start(5, &[]);
    cluster.wait_until_settled();
    cluster.kill(4);
    cluster.signal(3, Signal::STOP);
    assert_eq!(apply_change(&cluster, 0, &["--remove-dead", "n3", "--remove-dead", "n4"]), 5);
    wait_for_epoch(&cluster, 2, 5);
    cluster.kill(0);
    cluster.kill(1);
    cluster.signal(3, Signal::CONT);
    cluster.up(4);
    for node in [3, 4] {
        wait_until("it hears of it", || cluster.status(node)["membership"] == "removed");
        let refused = cluster.client(node).get(&key(1));
        assert_eq!(refused.json()["type"], "removed");
        assert_eq!(layout(&cluster, node)["epoch"], 5);
        assert_eq!(cluster.client(node).get("/readyz").status, 503);
    }
    let said = |log: &str| log.matches("this node was removed from the cluster").count();
    for node in [3, 4] {
        let log = cluster.stop_for_its_log(node);
        assert_eq!(said(&log), 1, "{log}");
        // The node knows from its disk that it was removed, and connects to no other node.
        cluster.up(node);
        assert_eq!(cluster.status(node)["membership"], "removed");
        let log = cluster.stop_for_its_log(node);
        assert_eq!((said(&log), log.contains("peer refused")), (1, false), "{log}");
    }
}

#[test]
fn a_removed_node_that_starts_with_an_empty_directory_and_its_old_list_is_not_ready() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    cluster.kill(3);
    apply_change(&cluster, 0, &["--remove-dead", "n3"]);
    drop(cluster.take_data(3));
    cluster.put_back(3, tempfile::tempdir().unwrap());
    cluster.up(3);
    wait_until("its removal is known", || cluster.status(3)["membership"] == "removed");
    assert_eq!(cluster.client(3).get("/readyz").status, 503);
    let status = run(&["status", "--url", &format!("http://{}", cluster.address(3))]);
    let why = text(&status.stdout);
    assert!(why.contains("n3 was removed from the cluster: it serves no requests"), "{why}");
    assert_eq!(status.status.code(), Some(1), "{why}");
}

#[test]
fn a_plan_says_how_long_it_takes_at_the_rate_that_is_allowed() {
    let cluster = Cluster::start(4, &["--stream-rate", "64KiB"]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..100 {
        assert_eq!(client.put(&key(number), &vec![b'x'; LONG]).status, 201);
    }
    let plan = plan_change(&cluster, 0, &["--weight", "n0=4"]);
    let seconds = plan["seconds_at_rate"].as_u64().unwrap();
    let most = plan["moved_bytes"].as_u64().unwrap() / (64 << 10);
    assert!((1..=most + 1).contains(&seconds), "{plan}");
    let told = cluster_command(&cluster, 0, &["plan", "--weight", "n0=4"]);
    assert!(text(&told.stdout).contains("at least, at the --stream-rate of this node"));
}

/// A node outside the council receives the last layout after the members of the council.
#[test]
fn after_apply_with_wait_every_node_reports_the_new_epoch() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    for round in 0..6 {
        let epoch = apply_change(&cluster, 0, &["--weight", &format!("n1={}", 2 - round % 2)]);
        let status = cluster_command(&cluster, 0, &["status"]);
        assert!(status.status.success(), "{}{}", text(&status.stdout), text(&status.stderr));
        assert!((0..4).all(|node| layout(&cluster, node)["epoch"] == epoch));
    }
    cluster.signal(3, Signal::STOP);
    let status = cluster_command(&cluster, 0, &["status"]);
    let why = text(&status.stderr);
    assert_eq!(status.status.code(), Some(1), "{why}");
    assert!(why.contains("not all nodes go by epoch") && why.contains("n3 does not tell"), "{why}");
    cluster.signal(3, Signal::CONT);
}
