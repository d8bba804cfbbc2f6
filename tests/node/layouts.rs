//! The cluster's layout through a node's interfaces: `kvorum cluster` and `/admin/layout`. The
//! tests change the council under load, while nodes are down, and after nodes lost their disks.

use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kit::raw::Client;
use serde_json::Value;

use crate::cluster::{Cluster, key};
use crate::process::{pause_between_requests, run, wait_until};

fn cluster_command(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    let url = format!("http://{}", cluster.address(node));
    run(&[&["cluster"], args, &["--url", &url]].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Makes a plan for another council at a node; returns the plan's ID.
fn plan_council(cluster: &Cluster, node: usize, council: &str) -> String {
    let planned = cluster_command(cluster, node, &["plan", "--json", "--council", council]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let council: Vec<&str> = council.split(',').collect();
    assert_eq!((&plan["moved_copies"], &plan["council"]), (&0.into(), &council.into()));
    plan["plan"].as_str().unwrap().to_owned()
}

/// Changes the council through a node; returns the new epoch.
fn change(cluster: &Cluster, node: usize, council: &str) -> u64 {
    let plan = plan_council(cluster, node, council);
    let applied = cluster_command(cluster, node, &["apply", "--wait", "--json", &plan]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let told: Value = serde_json::from_slice(&applied.stdout).unwrap();
    told["epoch"].as_u64().unwrap()
}

fn layout(cluster: &Cluster, node: usize) -> Value {
    serde_json::from_slice(&cluster.client(node).get("/admin/layout").body()).unwrap()
}

fn wait_for_epoch(cluster: &Cluster, node: usize, epoch: u64) {
    wait_until("the node goes by the layout", || layout(cluster, node)["epoch"] == epoch);
}

/// Waits until `kvorum cluster status` exits with `code`; returns the status. For a moment, a node
/// that was just started or killed may be shown in its earlier state.
fn status(cluster: &Cluster, node: usize, code: i32) -> String {
    let mut shown = String::new();
    wait_until(&format!("exit code {code} of cluster status"), || {
        let status = cluster_command(cluster, node, &["status"]);
        shown = text(&status.stdout);
        status.status.code() == Some(code)
    });
    shown
}

/// Stops the threads that watch the flag: sets the flag when dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_council_changes_under_load_and_no_request_fails() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        for node in 0..3 {
            let (cluster, stop, done) = (&cluster, &stop, &done);
            scope.spawn(move || {
                let mut client = cluster.client(node);
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number = (number + 1) % 100;
                    let entity = key(node * 100 + number);
                    assert_eq!(client.put(&entity, b"value").status, 201);
                    assert_eq!(client.get(&entity).status, 200);
                    done.fetch_add(1, Ordering::Relaxed);
                    pause_between_requests();
                }
            });
        }
        for (epoch, council) in (2..).zip(["n0", "n0,n1,n2", "n1", "n2", "n0,n1,n2"]) {
            let before = done.load(Ordering::Relaxed);
            assert_eq!(change(&cluster, epoch as usize % 3, council), epoch);
            (0..3).for_each(|node| wait_for_epoch(&cluster, node, epoch));
            wait_until("clients go on", || done.load(Ordering::Relaxed) > before + 30);
        }
    });
    let told = status(&cluster, 0, 0);
    assert!(told.contains("epoch 6, settled, replicas 3"), "{told}");
    assert!(told.contains("council: n0, n1, n2; 2 of them decide"), "{told}");
}

#[test]
fn a_minority_decides_nothing_and_a_returning_node_learns_the_layout() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let late = plan_council(&cluster, 0, "n1");
    let plan = plan_council(&cluster, 0, "n0,n1,n2");
    assert_eq!(layout(&cluster, 1)["has_vote"], true);
    cluster.kill(2);
    // Two of three nodes are a majority. A second apply of the same plan finds the change complete.
    for _ in 0..2 {
        let applied = cluster_command(&cluster, 0, &["apply", "--wait", &plan]);
        assert_eq!(text(&applied.stdout), "done: epoch 2\n", "{}", text(&applied.stderr));
    }
    wait_for_epoch(&cluster, 1, 2);
    cluster.up(2);
    wait_for_epoch(&cluster, 2, 2);
    status(&cluster, 1, 0);

    // Plans of an earlier epoch are refused, and so are plans that a node does not know.
    let late = cluster_command(&cluster, 0, &["apply", "--wait", &late]);
    let why = text(&late.stderr);
    assert!(!late.status.success() && why.contains("made in epoch 1, and it is epoch 2"), "{why}");
    let stranger = cluster_command(&cluster, 1, &["apply", &"0".repeat(32)]);
    let why = text(&stranger.stderr);
    assert!(!stranger.status.success() && why.contains("this node knows no plan 0000"), "{why}");

    // With one of three nodes up the change waits. Once the second node is back the change is made,
    // although nobody applies its plan again.
    let plan = plan_council(&cluster, 0, "n0");
    cluster.kill(1);
    cluster.kill(2);
    let asked = cluster_command(&cluster, 0, &["apply", &plan, "--json"]);
    assert!(asked.status.success(), "{}", text(&asked.stderr));
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!((&asked["epoch"], &asked["node"]), (&2.into(), &"n0".into()), "{asked}");
    let down = status(&cluster, 0, 1);
    assert!(down.contains("down"), "{down}");
    assert_eq!(layout(&cluster, 0)["epoch"], 2);
    cluster.up(1);
    wait_for_epoch(&cluster, 0, 3);
    wait_for_epoch(&cluster, 1, 3);
    cluster.up(2);
    wait_for_epoch(&cluster, 2, 3);

    // The layout is durable: all nodes have it after a restart, even a node that runs alone.
    for node in 0..3 {
        cluster.kill(node);
    }
    cluster.up(0);
    assert_eq!(layout(&cluster, 0)["epoch"], 3);
    assert_eq!(layout(&cluster, 0)["council"], serde_json::json!(["n0"]));
}

#[test]
fn a_councillor_with_a_new_disk_has_no_vote_until_the_next_change() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    assert_eq!(change(&cluster, 0, "n0,n1,n2"), 2);
    wait_for_epoch(&cluster, 2, 2);
    cluster.kill(2);
    cluster.wipe(2);
    cluster.up(2);
    cluster.wait_until_settled();
    wait_for_epoch(&cluster, 2, 2);
    assert_eq!(layout(&cluster, 2)["has_vote"], false);
    // The status reports the missing vote, and a plan shows that it would restore the vote.
    let url = format!("http://{}", cluster.address(0));
    for command in [&["status"][..], &["cluster", "status"]] {
        wait_until(&format!("a report of the missing vote by {command:?}"), || {
            let shown = text(&run(&[command, &["--url", &url]].concat()).stdout);
            shown.contains("n2 is in the council and has no vote")
                && shown.contains("kvorum cluster plan")
        });
    }
    let metrics = text(&cluster.client(2).get("/metrics").body());
    assert!(metrics.contains("\nkvorum_council_vote_lost 1\n"), "{metrics}");
    wait_until("a plan that seats the disk n2 has now", || {
        let planned = text(&cluster_command(&cluster, 0, &["plan"]).stdout);
        planned.contains("n2 votes again, with the disk that it has now")
    });
    // The other nodes decide a plan that gives n2 its vote again.
    assert_eq!(change(&cluster, 2, "n0,n1,n2"), 3);
    wait_for_epoch(&cluster, 2, 3);
    assert_eq!(layout(&cluster, 2)["has_vote"], true);
    cluster.kill(0);
    assert_eq!(change(&cluster, 1, "n2"), 4, "its vote counts: the first node is away");
}

#[test]
fn a_plan_shows_moved_copies_and_refuses_invalid_changes() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    // The seats of the first layout name no voters. The first change names them, so a later plan
    // for the same council changes nothing.
    assert_eq!(change(&cluster, 0, "n0,n1,n2"), 2);
    let plan = |args: &[&str]| cluster_command(&cluster, 0, &[&["plan"], args].concat());
    let grown = plan(&["--add", "d=http://127.0.0.1:1;zone=x", "--weight", "n0=2", "--json"]);
    let grown: Value = serde_json::from_slice(&grown.stdout).unwrap();
    assert_eq!((&grown["base_epoch"], &grown["nodes"][0]["change"]), (&2.into(), &"joins".into()));
    assert_eq!(grown["changes"], serde_json::json!(["weight of n0 1 → 2"]));
    let fewer = text(&plan(&["--replicas", "1"]).stdout);
    assert!(fewer.starts_with("replicas 3 → 1: fewer nodes may fail\n"), "{fewer}");
    let moved = grown["moved_copies"].as_u64().unwrap();
    assert!((40_000..60_000).contains(&moved), "a share of 3 in 15 of 196,608 copies: {moved}");
    for (args, said) in [
        (&["--remove", "x"][..], "node \"x\" is not a member"),
        (&["--add", "n0=http://127.0.0.1:1"], "node \"n0\" is a member already"),
        (&["--add", "ftp://h"], "is not a node URL"),
        (&["--remove", "n0"], "2 nodes would be left, fewer than replicas 3"),
        (&["--council", "n0,n1"], "a council has 1, 3, 5 or 7 nodes, and 2 were named"),
        (&["--council", "n0,n1,x"], "node \"x\" is not a member"),
        (&["--weight", "n0"], "is not NODE=1..1000"),
        (&["--weight", "n0=0"], "weight 0 is out of range"),
    ] {
        let refused = plan(args);
        let why = text(&refused.stderr);
        assert!(!refused.status.success() && why.contains(said), "{args:?}: {why}");
    }
    // Repeats until a plan changes nothing. While a member of the council is unreachable, a plan
    // replaces it by another node. If a node was unreachable when the change above was planned, its
    // seat names no voter until the next change.
    wait_until("that there is nothing to change", || {
        let refused = plan(&["--json"]);
        if refused.status.success() {
            let shown: Value = serde_json::from_slice(&refused.stdout).unwrap();
            cluster_command(&cluster, 0, &["apply", "--wait", shown["plan"].as_str().unwrap()]);
        }
        !refused.status.success() && text(&refused.stderr).contains("nothing changes")
    });
    let mut client: Client = cluster.client(0);
    for (target, said) in [
        ("/admin/layout/plan?weight=a=1&weight=b=2", "duplicate parameter"),
        ("/admin/layout/plan?size=3", "unknown parameter"),
        ("/admin/layout/apply", "plan"),
        ("/admin/layout/apply?plan=xyz", "is not a valid plan id"),
    ] {
        let refused = client.request("POST", target, b"");
        assert_eq!(refused.status, 400, "{target}");
        assert!(text(&refused.body()).contains(said), "{target}");
    }
}
