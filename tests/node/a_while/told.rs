//! The output of `kvorum cluster apply --wait` in a log: one line every ten seconds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::cluster::Cluster;
use crate::moves::{cluster_command, plan_change, text};
use crate::process::kvorum;

/// Starts four nodes, kills the last one, and runs `apply --wait` through the first node for a plan
/// that removes the last node.
fn waits_for_a_dead_node() -> (Cluster, Child) {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    cluster.kill(3);
    let plan = plan_change(&cluster, 0, &["--remove", "n3"])["plan"].as_str().unwrap().to_owned();
    let url = format!("http://{}", cluster.address(0));
    let mut command = kvorum();
    command.args(["cluster", "apply", "--wait", &plan, "--url", &url]);
    let waiting = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    (cluster, waiting)
}

/// Returns the lines that a command prints on stderr.
fn stderr_lines(command: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(command.stderr.take().unwrap()).lines().map(Result::unwrap)
}

/// Without a terminal the command draws no progress bar, but readers of a log need the same
/// information.
#[test]
fn a_log_is_told_how_far_a_change_is_and_what_it_waits_for() {
    let (cluster, mut waiting) = waits_for_a_dead_node();
    let mut lines = stderr_lines(&mut waiting);
    let stage = "epoch 3, read old: keys move; waiting until all nodes hold what moves to them";
    assert!(lines.any(|line| line == stage));
    let line = lines.next().unwrap();
    let gone = format!("n3 does not answer n0 at http://{}: ", cluster.address(3));
    for what in ["epoch 3, read old: ", "not yet ", "n3 (down); if one is gone for good: ", &gone] {
        assert!(line.contains(what), "{what}: {line}");
    }
    let aborted = cluster_command(&cluster, 1, &["abort"]);
    assert!(aborted.status.success(), "{}", text(&aborted.stderr));
    assert_eq!(lines.last().unwrap(), "kvorum: the change was aborted (kvorum cluster abort)");
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
}

/// A node no longer reports a change after an abort that was requested from this node.
#[test]
fn an_abort_through_the_same_node_ends_the_wait_for_a_change() {
    let (cluster, mut waiting) = waits_for_a_dead_node();
    let mut lines = stderr_lines(&mut waiting);
    assert!(lines.any(|line| line.contains("read old: keys move")));
    let aborted = cluster_command(&cluster, 0, &["abort"]);
    assert!(aborted.status.success(), "{}", text(&aborted.stderr));
    assert_eq!(lines.last().unwrap(), "kvorum: the change was aborted (kvorum cluster abort)");
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
}
