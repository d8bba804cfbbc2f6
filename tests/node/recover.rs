//! `kvorum cluster recover`: after a majority of the council is lost with its disks, one remaining
//! node decides alone. Nodes that had a later layout, or that return later, report the conflict or
//! adopt the decision.

use std::process::Output;
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::moves::{apply_change, cluster_command, layout, plan_change, text, wait_for_epoch};
use crate::process::{Node, kvorum, run, wait_until};
use crate::rollback::copy;

/// The epoch after a recovery.
const RECOVERED: u64 = 1_000_000;

const KEYS: usize = 100;

fn recover(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    let data = cluster.data(node);
    run(&[&["cluster", "recover", "--data", data.to_str().unwrap()], args].concat())
}

/// Runs a recovery that must succeed; returns its stdout.
fn run_recovery(cluster: &Cluster, node: usize, args: &[&str]) -> String {
    let done = recover(cluster, node, &[args, &["--yes"]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stdout)
}

/// Starts a node that joins the cluster of `n0`, and waits until it asks. The returned thread ends
/// once a plan has added the node.
fn joins(cluster: &Cluster, name: &str) -> JoinHandle<Node> {
    let of = format!("http://{}", cluster.address(0));
    let name = name.to_owned();
    let handle = thread::spawn({
        let name = name.clone();
        move || {
            let args = ["--join", &of, "--name", &name, "--log", "warn"];
            Node::start_with(kvorum(), tempfile::tempdir().unwrap(), &args)
        }
    });
    wait_until("it asks to join", || {
        let asking = layout(cluster, 0)["joining"].as_array().cloned().unwrap_or_default();
        asking.iter().any(|asker| asker["name"] == name)
    });
    handle
}

fn write(cluster: &Cluster) {
    cluster.fill(KEYS, b"before");
}

fn read(cluster: &Cluster) {
    read_from(cluster, 0);
}

fn read_from(cluster: &Cluster, first: usize) {
    cluster.has(first..KEYS, b"before");
}

#[test]
fn a_cluster_that_lost_its_council_goes_on_from_one_node() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    let early = recover(&cluster, 0, &["--lost", "n1,n2"]);
    assert!(!early.status.success(), "the node runs: {}", text(&early.stdout));
    (1..3).for_each(|node| cluster.kill(node));
    let old: TempDir = cluster.take_data(1);
    cluster.wipe(1);
    cluster.wipe(2);
    wait_until("its seeing that they are gone", || {
        let peers = cluster.status(0)["peers"].clone();
        peers.as_array().unwrap().iter().all(|peer| peer["up"] == false)
    });
    let plan = plan_change(&cluster, 0, &["--council", "n0"]);
    let warned = plan["warnings"].to_string();
    assert!(warned.contains("no majority of the council (n0, n1, n2) can vote"), "{warned}");
    assert!(warned.contains("kvorum cluster recover"), "{warned}");
    cluster.kill(0);

    // If not all lost nodes are named, the command changes nothing.
    for (args, said) in [
        (&[][..], "n0, n1, n2 can vote, and 2 are enough"),
        (&["--lost", "n1", "--yes"], "n0, n2 can vote, and 2 are enough"),
        (&["--lost", "n0"], "belongs to node n0, which is not lost then"),
        (&["--lost", "n1,n2", "--without-vote", "n2"], "node n2 is named by --lost"),
        (&["--lost", "x"], "node \"x\" is not a member: the members are n0, n1, n2"),
    ] {
        let refused = recover(&cluster, 0, args);
        let why = text(&refused.stderr);
        assert!(!refused.status.success() && why.contains(said), "{args:?}: {why}");
    }
    let shown = text(&recover(&cluster, 0, &["--lost", "n1,n2"]).stdout);
    for said in [
        "node n0, member: epoch 1, settled, replicas 3",
        "council: n0 (can vote), n1 (lost), n2 (lost); 2 must vote, and 1 can",
        "Node n0 would be in epoch 1000000",
        "Nothing was changed",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let done = run_recovery(&cluster, 0, &["--lost", "n1,n2"]);
    assert!(done.contains("--remove-dead n1 --remove-dead n2"), "{done}");

    cluster.up(0);
    wait_for_epoch(&cluster, 0, RECOVERED);
    assert_eq!(layout(&cluster, 0)["council"], serde_json::json!(["n0"]));
    let joiners = ["d", "e"].map(|name| joins(&cluster, name));
    let change = ["--add", "d,e", "--remove-dead", "n1", "--remove-dead", "n2"];
    let epoch = apply_change(&cluster, 0, &change);
    assert_eq!(epoch, RECOVERED + 4);
    let _joined = joiners.map(|joiner| joiner.join().unwrap());
    let council = layout(&cluster, 0)["council"].to_string();
    assert_eq!(council, r#"["n0","d","e"]"#, "the council has its size again");
    read(&cluster);

    // A node that was declared lost returns with its old disk, and learns that it was removed.
    cluster.put_back(1, old);
    cluster.up(1);
    wait_until("being told", || cluster.status(1)["membership"] == "removed");
    assert_eq!(cluster.client(1).get(&key(1)).status, 503);
    read(&cluster);
}

/// The nodes of the cluster start one after another, as in a first deployment.
#[test]
fn a_cluster_that_has_not_begun_has_lost_nothing() {
    let mut cluster = Cluster::create_stopped(3, &[]);
    cluster.up(0);
    let refuses = |cluster: &Cluster, args: &[&str], missing: &str| {
        let refused = cluster_command(cluster, 0, args);
        let why = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {why}");
        assert!(why.contains("the cluster of this list has not begun"), "{args:?}: {why}");
        assert!(why.contains(&format!("start the other nodes of the list, once each ({missing})")));
    };
    refuses(&cluster, &["plan", "--replicas", "2"], "n1, n2");
    cluster.up(1);
    wait_until("their meeting", || {
        let peers = cluster.status(0)["peers"].clone();
        peers.as_array().unwrap().iter().any(|peer| peer["up"] == true)
    });
    for args in [&["plan"][..], &["plan", "--replicas", "2"], &["abort"]] {
        refuses(&cluster, args, "n2");
    }
    let url = format!("http://{}", cluster.address(0));
    for args in [&["token", "create", "--name", "t"][..], &["quota", "set", "q", "--hard", "1MiB"]]
    {
        let refused = run(&[args, &["--url", &url]].concat());
        let why = text(&refused.stderr);
        assert!(why.contains("the cluster of this list has not begun"), "{args:?}: {why}");
    }
    for args in [&["status"][..], &["cluster", "status"]] {
        let told = text(&run(&[args, &["--url", &url]].concat()).stdout);
        assert!(!told.contains("disk was replaced") && !told.contains("plan"), "{told}");
        for name in ["n0", "n1"] {
            let waits = format!("{name} waits for the other nodes of a new cluster");
            assert!(told.contains(&waits), "{args:?}: {told}");
        }
    }
    cluster.kill(1);
    let refused = recover(&cluster, 1, &["--lost", "n2", "--without-vote", "n0", "--yes"]);
    let why = text(&refused.stderr);
    assert!(!refused.status.success() && why.contains("belongs to no cluster yet"), "{why}");
    cluster.up(1);
    cluster.up(2);
    cluster.wait_until_settled();
    let told = run(&["token", "create", "--name", "t", "--url", &url]);
    assert!(told.status.success(), "{}", text(&told.stderr));
}

/// Two of three disks are replaced one after another, and no plan in between gives the nodes their
/// votes back.
#[test]
fn a_plan_says_that_councillors_have_lost_their_votes() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    for node in [1, 2] {
        cluster.stop(node);
        cluster.wipe(node);
        cluster.up(node);
        cluster.wait_until_settled();
    }
    let plan = plan_change(&cluster, 0, &["--weight", "n0=2"]);
    let warned = plan["warnings"].to_string();
    for what in ["no majority of the council (n0, n1, n2) can vote: not n1, n2", "--without-vote"] {
        assert!(warned.contains(what), "{what}: {warned}");
    }
}

#[test]
fn survivors_and_a_returning_councillor_adopt_the_forced_layout() {
    let mut cluster = Cluster::start(5, &[]);
    cluster.wait_until_settled();
    assert_eq!(apply_change(&cluster, 0, &["--council", "n0,n3,n4"]), 2);
    (0..5).for_each(|node| wait_for_epoch(&cluster, node, 2));
    write(&cluster);
    (3..5).for_each(|node| cluster.kill(node));
    cluster.kill(0);
    run_recovery(&cluster, 0, &["--lost", "n3,n4"]);
    cluster.up(0);
    (0..3).for_each(|node| wait_for_epoch(&cluster, node, RECOVERED));
    // Node n3 was not lost after all. It is still a member, but has no vote.
    cluster.up(3);
    wait_for_epoch(&cluster, 3, RECOVERED);
    assert_eq!(layout(&cluster, 3)["has_vote"], false);
    assert_eq!(apply_change(&cluster, 1, &["--council", "n0,n1,n2"]), RECOVERED + 1);
    wait_for_epoch(&cluster, 3, RECOVERED + 1);
    read(&cluster);
}

#[test]
fn recover_accepts_a_copy_of_a_directory() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    (0..3).for_each(|node| cluster.stop(node));
    let copied = tempfile::tempdir().unwrap();
    copy(&cluster.data(0), &copied.path().join("data"));
    (0..3).for_each(|node| cluster.wipe(node));
    cluster.put_back(0, copied);
    let lost = ["--lost", "n1,n2"];
    let refused = text(&recover(&cluster, 0, &lost).stderr);
    let says = |what: &str| refused.contains(what);
    assert!(says("it is a copy") && says("start the node once"), "{refused}");
    cluster.up(0);
    cluster.stop(0);
    let shown = run_recovery(&cluster, 0, &lost);
    assert!(shown.contains("node n0, verifying: epoch 1"), "{shown}");
    for _ in 0..2 {
        cluster.up(0);
        wait_for_epoch(&cluster, 0, RECOVERED);
        assert_eq!(layout(&cluster, 0)["has_vote"], true, "whatever it may lack");
        cluster.stop(0);
    }
    // The copy is rebuilt from nodes without data, because the nodes that had the data are declared
    // lost.
    cluster.up(0);
    let joiners = ["d", "e"].map(|name| joins(&cluster, name));
    apply_change(&cluster, 0, &["--add", "d,e", "--remove-dead", "n1,n2"]);
    let _joined = joiners.map(|joiner| joiner.join().unwrap());
    wait_until("its being a member", || cluster.status(0)["membership"] == "member");
    read(&cluster);
}

/// A change is under way and waits for a node that is down. Then the majority of the council is
/// lost too.
#[test]
fn a_change_that_is_under_way_is_gone_back_from() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.kill(3);
    let plan = plan_change(&cluster, 0, &["--remove", "n3"])["plan"].as_str().unwrap().to_owned();
    assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
    for node in 0..3 {
        wait_until("the stage", || layout(&cluster, node)["stage"] == "read old");
    }
    (0..3).for_each(|node| cluster.kill(node));
    let done = run_recovery(&cluster, 0, &["--lost", "n1,n2"]);
    assert!(done.contains("epoch 3, keys move, and reads have not switched"), "{done}");
    assert!(done.contains("The change that is under way is undone"), "{done}");
    cluster.up(0);
    wait_for_epoch(&cluster, 0, RECOVERED);
    assert_eq!(layout(&cluster, 0)["nodes"].as_array().unwrap().len(), 4);
    // Node n3 was down during the recovery.
    cluster.up(3);
    wait_for_epoch(&cluster, 3, RECOVERED);
    let change = ["--remove-dead", "n1,n2", "--replicas", "2"];
    assert_eq!(apply_change(&cluster, 3, &change), RECOVERED + 4);
    let mut client = cluster.client(3);
    let held = (0..KEYS).filter(|number| client.get(&key(*number)).body() == b"before").count();
    assert_eq!(held, KEYS, "each key was on one of the two that are left");
}

/// A rebuild waits for the records of all other nodes except those declared lost. If it also waited
/// for those, the node and the plan that removes them would wait for each other.
#[test]
fn a_rebuild_does_not_wait_for_a_node_removed_as_dead() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.kill(2);
    cluster.kill(3);
    cluster.wipe(2);
    cluster.up(2);
    wait_until("its being rebuilt", || cluster.status(2)["membership"] == "rebuilding");
    apply_change(&cluster, 0, &["--remove-dead", "n3"]);
    wait_until("its being a member", || cluster.status(2)["membership"] == "member");
    read(&cluster);
}

/// Returns true if a node has refused a peer handshake.
fn has_refused(cluster: &Cluster, node: usize) -> bool {
    let metrics = text(&cluster.client(node).get("/metrics").body());
    let mut lines = metrics.lines();
    lines.any(|line| {
        let count = line.strip_prefix("kvorum_peer_handshakes_refused_total ");
        count.is_some_and(|count| count != "0")
    })
}

#[test]
fn councillors_that_decided_something_else_are_refused() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.kill(0);
    run_recovery(&cluster, 0, &["--lost", "n1,n2"]);
    // Nodes n1 and n2 were not lost, and form a majority.
    assert_eq!(apply_change(&cluster, 1, &["--council", "n1"]), 2);
    wait_for_epoch(&cluster, 2, 2);
    cluster.up(0);
    for node in 0..3 {
        wait_until("refusing the other side", || has_refused(&cluster, node));
    }
    assert_eq!(cluster.client(1).put(&key(1), b"after").status, 201, "two of three go on");
    assert_eq!(cluster.client(0).put(&key(1), b"lost").status, 504, "one of three does not");
    wait_for_epoch(&cluster, 0, RECOVERED);
    wait_for_epoch(&cluster, 1, 2);
    // The operator keeps the decision of n1 and n2, so n0 returns with an empty disk.
    let log = cluster.stop_for_its_log(0);
    let why = "goes by epoch 2 and this node, n0, by epoch 1000000, and neither grew out of the";
    assert!(log.contains(why) && log.contains("start each node of the other one"), "{log}");
    cluster.wipe(0);
    cluster.up(0);
    cluster.wait_until_settled();
    wait_for_epoch(&cluster, 0, 2);
    read_from(&cluster, 2);
    assert_eq!(cluster.client(0).get(&key(1)).body(), b"after");
}

/// Stops a node, and starts it with a copy of its directory, as after a move to another disk.
fn move_to_copy(cluster: &mut Cluster, node: usize) {
    cluster.stop(node);
    let copied = tempfile::tempdir().unwrap();
    copy(&cluster.data(node), &copied.path().join("data"));
    cluster.put_back(node, copied);
    cluster.up(node);
    cluster.wait_until_settled();
}

/// Waits until a node knows the disk of `councillor`. Before that, no plan can give `councillor` a
/// seat in the council.
fn can_be_seated(cluster: &Cluster, node: usize, councillor: &str) {
    wait_until("the councillor's disk is known", || {
        cluster_command(cluster, node, &["plan", "--council", councillor]).status.success()
    });
}

/// Returns the output of `kvorum status` and of `kvorum cluster status` at a node.
fn statuses(cluster: &Cluster, node: usize) -> [String; 2] {
    let url = format!("http://{}", cluster.address(node));
    [&["status"][..], &["cluster", "status"]]
        .map(|args| text(&run(&[args, &["--url", &url]].concat()).stdout))
}

fn token(cluster: &Cluster, args: &[&str]) -> Output {
    let url = format!("http://{}", cluster.address(0));
    run(&[&["token"], args, &["--url", &url]].concat())
}

/// In a cluster of two nodes the council is one node. After that node has lost its vote, no plan
/// can restore the vote.
#[test]
fn a_council_whose_directory_was_copied_is_recovered_as_the_commands_say() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.wait_until_settled();
    assert_eq!(layout(&cluster, 0)["council"], serde_json::json!(["n0"]));
    assert!(token(&cluster, &["create", "--name", "before"]).status.success());
    move_to_copy(&mut cluster, 0);
    for told in statuses(&cluster, 1) {
        for what in [
            "no majority of the council (n0) has a vote: not n0, whose disks were replaced, or \
             whose directories were copied",
            "stop n0, run kvorum cluster recover --data DIRECTORY-OF-n0 --without-vote n0, the",
        ] {
            assert!(told.contains(what), "{what}: {told}");
        }
        assert!(!told.contains("seats it again"), "no plan can: {told}");
    }
    let plan = plan_change(&cluster, 0, &[])["plan"].as_str().unwrap().to_owned();
    let applied = cluster_command(&cluster, 0, &["apply", "--wait", &plan]);
    let why = text(&applied.stderr);
    assert_eq!(applied.status.code(), Some(1), "{why}");
    assert!(why.contains("asking again does not help; the way out is kvorum cluster rec"), "{why}");
    let revoked = token(&cluster, &["revoke", "before"]);
    let why = text(&revoked.stderr);
    assert!(why.contains("kvorum cluster status") && !why.contains("secret"), "{why}");

    cluster.stop(0);
    let shown = text(&recover(&cluster, 0, &["--without-vote", "n0"]).stdout);
    assert!(shown.contains("council: n0 (has no vote); 1 must vote, and 0 can"), "{shown}");
    let done = run_recovery(&cluster, 0, &["--without-vote", "n0"]);
    assert!(!done.contains("lost nodes") && !done.contains("NEW"), "none is lost: {done}");
    assert!(!done.contains("plan"), "there is nothing to plan: {done}");
    cluster.up(0);
    (0..2).for_each(|node| wait_for_epoch(&cluster, node, RECOVERED));
    cluster.wait_until_settled();
    for told in statuses(&cluster, 0) {
        assert!(!told.contains("vote"), "{told}");
    }
    assert!(token(&cluster, &["revoke", "before"]).status.success());
}

#[test]
fn a_council_of_one_moves_away_before_its_directory_is_copied() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.wait_until_settled();
    can_be_seated(&cluster, 0, "n1");
    apply_change(&cluster, 0, &["--council", "n1"]);
    move_to_copy(&mut cluster, 0);
    can_be_seated(&cluster, 1, "n0");
    apply_change(&cluster, 1, &["--council", "n0"]);
    move_to_copy(&mut cluster, 1);
    assert!(token(&cluster, &["create", "--name", "after"]).status.success());
}

#[test]
fn directories_of_three_are_copied_with_a_plan_after_each() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    for node in 0..3 {
        move_to_copy(&mut cluster, node);
        let [told, _] = statuses(&cluster, node);
        let lost = format!("n{node} is in the council and has no vote: its disk was replaced, or");
        assert!(told.contains(&lost) && told.contains("seats it again"), "{told}");
        apply_change(&cluster, node, &[]);
        assert!(!statuses(&cluster, node)[0].contains("no vote"));
    }
    assert!(token(&cluster, &["create", "--name", "after"]).status.success());
    // If two nodes lose their votes with no plan in between, no majority is left. The recovery then
    // runs on the node that still has a vote.
    move_to_copy(&mut cluster, 1);
    move_to_copy(&mut cluster, 2);
    let [told, _] = statuses(&cluster, 1);
    assert!(told.contains("DIRECTORY-OF-n0 --without-vote n1,n2, the same"), "{told}");
    cluster.stop(0);
    let done = run_recovery(&cluster, 0, &["--without-vote", "n1,n2"]);
    assert!(!done.contains("lost nodes") && !done.contains("NEW"), "none is lost: {done}");
    assert!(done.contains("\n  kvorum cluster plan\n  kvorum cluster apply PLAN"), "{done}");
    cluster.up(0);
    (0..3).for_each(|node| wait_for_epoch(&cluster, node, RECOVERED));
    apply_change(&cluster, 0, &[]);
    assert_eq!(layout(&cluster, 0)["council"], serde_json::json!(["n0", "n1", "n2"]));
    assert!(!statuses(&cluster, 0)[0].contains("no vote"));
}
