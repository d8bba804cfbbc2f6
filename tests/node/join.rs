//! `kvorum serve --join`: a node with an empty directory waits until it is a member of a cluster,
//! or exits with the reason why it can't become one. Node a is a member; the test simulates the
//! other nodes and the council.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;

use kit::process::Process;
use rustix::process::Signal;
use serde_json::Value;

use crate::members::{c_joins, json, node, peers, start, tells};
use crate::peers::{SECRET, good_b, perform_handshake};
use crate::process::{Node, TIMEOUT, kvorum, run, wait_until};

/// URL of node c in the layouts of these tests.
const C: &str = "http://127.0.0.1:3";

fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}

fn with_secret(secret: &str) -> Command {
    let mut command = kvorum();
    command.env("KVORUM_CLUSTER_SECRET", secret);
    command
}

/// Returns the command that starts a node with this name and URL, which joins the cluster of `of`.
fn join_command(secret: &str, data: &std::path::Path, of: &str, name: &str, url: &str) -> Command {
    let mut command = with_secret(secret);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    command.args(["--join", of, "--name", name, "--advertise", url, "--zone", "z"]);
    command
}

/// A node process that asks to join.
struct Waiting(Process);

impl Waiting {
    fn start(mut command: Command) -> Self {
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Process::start(pipes).unwrap())
    }

    /// Stops the process with SIGTERM; returns its stdout and its log.
    fn stop(mut self) -> (String, String) {
        self.0.signal(Signal::TERM).unwrap();
        let status = self.0.wait_within(TIMEOUT).unwrap().expect("it ends");
        let mut out = String::new();
        self.0.take_stdout().unwrap().read_to_string(&mut out).unwrap();
        let log = self.0.read_stderr().unwrap();
        assert!(status.success(), "{status}: {log}");
        (out, log)
    }
}

/// Returns the names of the nodes that currently ask `node` to join.
fn joining_names(node: &Node) -> Vec<String> {
    let layout = json(node, "/admin/layout");
    let joining = layout["joining"].as_array().cloned().unwrap_or_default();
    joining.iter().map(|joiner| joiner["name"].as_str().unwrap().to_owned()).collect()
}

fn plan(node: &Node, add: &str) -> std::process::Output {
    run(&["cluster", "plan", "--json", "--add", add, "--url", &url(node)])
}

#[test]
fn a_node_waits_for_its_place_and_starts_as_a_member() {
    let node = node();
    // The cluster begins after a has connected to b.
    perform_handshake(&node, &good_b()).outcome.unwrap();
    wait_until("a is a member", || json(&node, "/v0/status")["membership"] == "member");
    let data = tempfile::tempdir().unwrap();
    let unknown = plan(&node, "c");
    let why = String::from_utf8(unknown.stderr).unwrap();
    assert!(why.contains("does not ask this node to join (those that do: none)"), "{why}");

    // The node waits. A restart changes neither its disk nor its voter ID.
    let command = || join_command(SECRET, &data.path().join("data"), &url(&node), "c", C);
    let mut voters = Vec::new();
    for _ in 0..2 {
        // The request of the previous process must be forgotten, so that it is not mistaken for a
        // request of this process.
        wait_until("what was asked is forgotten", || joining_names(&node).is_empty());
        let waiting = Waiting::start(command());
        wait_until("it asks", || joining_names(&node) == ["c"]);
        let planned = plan(&node, "c");
        let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
        assert_eq!(planned["nodes"][2]["change"], "joins", "{planned}");
        let council = ["cluster", "plan", "--json", "--council", "c", "--add", "c", "--url"];
        let council = run(&[&council[..], &[&url(&node)]].concat());
        let council: Value = serde_json::from_slice(&council.stdout).unwrap();
        // The plan's ID is a hash of its contents, which include the voter ID.
        voters.push(council["plan"].as_str().unwrap().to_owned());
        let status = run(&["cluster", "status", "--url", &url(&node)]);
        let status = String::from_utf8(status.stdout).unwrap();
        assert!(status.contains(&format!("asks to join: c  {C}  zone z  weight 1")), "{status}");
        let (out, log) = waiting.stop();
        assert!(out.contains("waits for a place in the cluster of"), "{out}");
        assert!(out.contains("kvorum cluster plan --add 'c' --url http://127.0.0.1:"), "{out}");
        assert!(log.contains("stopped"), "{log}");
    }
    assert_eq!(voters[0], voters[1]);

    // A waiting node refuses to start in another role.
    let mut alone = with_secret(SECRET);
    alone.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path().join("data"));
    let refused = alone.output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("it waits to join a cluster: start the node with --join"), "{why}");

    let of = url(&node);
    let starting = thread::spawn(move || {
        let args = ["--join", &of, "--name", "c", "--advertise", C, "--zone", "z"];
        Node::start_with(with_secret(SECRET), data, &args)
    });
    wait_until("it asks", || joining_names(&node) == ["c"]);
    tells(&node, &c_joins());
    let c = starting.join().unwrap();
    assert!(c.greeting.contains("waits for a place"), "{}", c.greeting);
    let wait_for_layout = |c: &Node| {
        let status = json(c, "/v0/status");
        assert_eq!((&status["name"], &status["url"]), (&"c".into(), &C.into()), "{status}");
        assert_eq!((&status["epoch"], &status["membership"]), (&5.into(), &"joining".into()));
        let names: Vec<_> = peers(c).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
    };
    wait_for_layout(&c);
    wait_until("it asks no more", || joining_names(&node).is_empty());
    // From now on the node does not need the flags for a join, but accepts them.
    let c = start(c.stop(), &[]);
    wait_for_layout(&c);
    let c = start(c.stop(), &["--join", "http://127.0.0.1:9", "--advertise", C]);
    wait_for_layout(&c);
}

/// Runs a join that must fail; returns the error, which is one line.
fn run_refused_join(mut command: Command) -> String {
    let refused = command.stdin(Stdio::null()).output().unwrap();
    assert!(!refused.status.success());
    let log = String::from_utf8(refused.stderr).unwrap();
    let said: Vec<&str> = log.lines().filter(|line| line.starts_with("kvorum: ")).collect();
    let [said] = said[..] else { panic!("{log}") };
    said.to_owned()
}

#[test]
fn a_refused_join_request_names_the_reason() {
    let node = node();
    // The connection as node b tells node a which disk b has.
    perform_handshake(&node, &good_b()).outcome.unwrap();
    let of = url(&node);
    for (secret, name, at, says) in [
        (
            SECRET,
            "a",
            C,
            "node a is a member already, at http://127.0.0.1:1: give this node another",
        ),
        (SECRET, "b", C, "node b is a member already, at http://127.0.0.1:2: give this node"),
        (SECRET, "c", "http://127.0.0.1:2", "node b is at http://127.0.0.1:2: a node that joins"),
        ("another secret, as long", "c", C, "the cluster secrets differ: give all nodes the same"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let said = run_refused_join(join_command(secret, data.path(), &of, name, at));
        assert!(said.contains(&format!("cannot join the cluster of {of}: {says}")), "{said}");
    }
    // Without a secret the request is refused earlier.
    let data = tempfile::tempdir().unwrap();
    let mut command = join_command(SECRET, data.path(), &of, "c", C);
    command.env_remove("KVORUM_CLUSTER_SECRET");
    let said = run_refused_join(command);
    assert!(said.contains("this cluster has a secret"), "{said}");

    let waiting = Waiting::start(join_command(SECRET, data.path(), &of, "c", C));
    wait_until("it asks", || joining_names(&node) == ["c"]);
    let other = tempfile::tempdir().unwrap();
    let elsewhere = "http://127.0.0.1:4";
    let said = run_refused_join(join_command(SECRET, other.path(), &of, "c", elsewhere));
    assert!(said.contains(&format!("another node asks to join as c too, at {C}")), "{said}");
    waiting.stop();

    let member = node.stop();
    let said = run_refused_join(join_command(SECRET, &member.path().join("data"), &of, "c", C));
    assert!(said.contains("it is that of node a"), "{said}");
    assert!(said.contains("Nothing was changed"), "{said}");
}

#[test]
fn an_unreachable_url_is_logged_once_while_the_node_keeps_asking() {
    let data = tempfile::tempdir().unwrap();
    let node = node();
    let of = format!("http://127.0.0.1:1,{}", url(&node));
    let mut waiting = Waiting::start(join_command(SECRET, data.path(), &of, "c", C));
    let mut log = BufReader::new(waiting.0.take_stderr().unwrap());
    let (mut lines, mut line) = (String::new(), String::new());
    while !lines.contains("it knows that this node asks to join") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "{lines}");
        lines += &line;
    }
    // A member lists a node for some seconds after the node's last request. The node asks once a
    // second, so it stays on the list.
    wait_until("it asks on", || joining_names(&node) == ["c"]);
    waiting.0.signal(Signal::TERM).unwrap();
    log.read_to_string(&mut lines).unwrap();
    let refusals = lines.lines().filter(|line| line.contains("url=\"http://127.0.0.1:1\"")).count();
    assert_eq!(refusals, 1, "{lines}");
}
