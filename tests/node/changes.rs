//! Membership changes with failures: nodes that lost their disks, die or start late; outdated
//! plans; data and secrets of other clusters.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use kit::ports;
use kit::raw::Client;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::moves::{apply_change, cluster_command, layout, plan_change, text, wait_for_epoch};
use crate::process::{Node, kvorum, run, wait_until};

const KEYS: usize = 100;

fn url(at: SocketAddr) -> String {
    format!("http://{at}")
}

/// A node that joins the cluster of `n0`, always at the same address.
pub(crate) struct Joiner {
    name: &'static str,
    of: String,
    at: SocketAddr,
}

impl Joiner {
    pub(crate) fn new(cluster: &Cluster, name: &'static str) -> Self {
        Self { name, of: url(cluster.address(0)), at: ports::addresses(1)[0] }
    }

    /// Also gives the node the URL of `n0` of another cluster.
    pub(crate) fn also(self, other: &Cluster) -> Self {
        Self { of: format!("{},{}", self.of, url(other.address(0))), ..self }
    }

    fn args(&self) -> [&str; 6] {
        ["--join", &self.of, "--name", self.name, "--log", "warn"]
    }

    /// Starts the node on this directory. The returned thread ends once the node is a member.
    pub(crate) fn starts(&self, data: TempDir) -> JoinHandle<Node> {
        let args = self.args().map(str::to_owned);
        let at = self.at.to_string();
        thread::spawn(move || {
            Node::start_at(&at, kvorum(), data, &args.each_ref().map(String::as_str))
        })
    }

    /// Starts the node on an empty directory, and waits until it asks to join.
    pub(crate) fn asks(&self, cluster: &Cluster) -> JoinHandle<Node> {
        let node = self.starts(tempfile::tempdir().unwrap());
        wait_until("it asks to join", || {
            let asking = layout(cluster, 0)["joining"].as_array().cloned().unwrap_or_default();
            asking.iter().any(|asker| asker["name"] == self.name)
        });
        node
    }

    /// Starts the node, and kills it after it has asked to join; returns the id of a plan that adds
    /// it.
    fn ask_then_kill(&self, cluster: &Cluster) -> String {
        let data = tempfile::tempdir().unwrap();
        let mut command = kvorum();
        command.args(["serve", "--listen", &self.at.to_string(), "--data"]);
        command.arg(data.path().join("data")).args(self.args());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it asks to join", || {
            layout(cluster, 0)["joining"].to_string().contains(&format!("\"{}\"", self.name))
        });
        let plan = plan_id(cluster, 0, &["--add", self.name]);
        child.kill().unwrap();
        child.wait().unwrap();
        plan
    }

    /// Starts the node, which must exit with an error; returns the error.
    fn start_refused(&self, data: &TempDir, more: impl FnOnce(&mut Command)) -> String {
        let mut command = kvorum();
        command.args(["serve", "--listen", &self.at.to_string(), "--data"]);
        command.arg(data.path().join("data")).args(self.args());
        more(&mut command);
        let refused = command.stdin(Stdio::null()).output().unwrap();
        assert!(!refused.status.success(), "{}", text(&refused.stdout));
        text(&refused.stderr)
    }
}

fn write(cluster: &Cluster) {
    cluster.fill(KEYS, b"value");
}

fn read(cluster: &Cluster) {
    cluster.has(0..KEYS, b"value");
}

fn membership(node: &Node) -> String {
    let status = node.client().get("/v0/status").body();
    let status: Value = serde_json::from_slice(&status).unwrap();
    status["membership"].as_str().unwrap().to_owned()
}

/// Runs, in a shell, the command that begins at `kvorum cluster` in `line` and extends to the end;
/// returns its stdout.
fn run_in_shell(line: &str) -> String {
    let command = &line[line.find("kvorum cluster").unwrap()..];
    let command = command.replacen("kvorum", env!("CARGO_BIN_EXE_kvorum"), 1);
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    let [out, said] = [text(&output.stdout), text(&output.stderr)];
    assert!(output.status.success(), "{command}: {out}{said}");
    out
}

#[test]
fn commands_that_are_printed_have_the_flags_of_the_connection() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    let flags = ["--ca-file", "no such.pem", "--timeout", "20s"];
    let status = text(&cluster_command(&cluster, 0, &[&["status"], &flags[..]].concat()).stdout);
    let shown = format!(" --url {} --ca-file 'no such.pem' --timeout 20s", url(cluster.address(0)));
    let asks = status.lines().find(|line| line.starts_with("asks to join: d")).unwrap();
    assert!(asks.ends_with(&format!("; kvorum cluster plan --add d{shown}")), "{asks}");
    let planned = run_in_shell(asks);
    let apply = planned.lines().last().unwrap();
    assert!(apply.ends_with(&format!(" --wait{shown}")), "{apply}");
    let asked = run_in_shell(&apply.replace(" --wait", ""));
    let shows = format!("kvorum cluster status{shown} shows its end");
    assert!(asked.contains(&shows), "{asked}");
    // The plan is already applied; a second apply of the same plan succeeds.
    assert!(run_in_shell(apply).starts_with("done: epoch "));
    drop(starts.join().unwrap());
    for (work, begins) in [("repair", "repair round"), ("compact", "compaction")] {
        let url = url(cluster.address(0));
        let output = run(&[&[work, "--url", &url], &flags[..]].concat());
        let said = text(&output.stdout);
        let shows = format!("kvorum {work} --wait{shown} shows its end");
        assert!(said.starts_with(begins) && said.contains(&shows), "{said}");
    }
}

/// Sends a node a join request for a node d with the URL `url`; returns the status and body of the
/// answer.
fn asks_by_hand(cluster: &Cluster, node: usize, url: &str) -> (u16, String) {
    let one = format!("{:016x}", 1);
    let clock_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let asker = serde_json::json!({"name": "d", "url": url, "weight": 1, "clock_ms": clock_ms,
        "began_ms": clock_ms, "incarnation": one, "voter": one});
    let asker = asker.to_string();
    let answer = cluster.client(node).request("POST", "/admin/join", asker.as_bytes());
    (answer.status, text(&answer.body()))
}

/// Two processes ask to join under one name by mistake: the first one continues to wait.
#[test]
fn the_second_process_that_asks_to_join_under_a_name_exits() {
    let cluster = Cluster::start(3, &[]);
    let asks = |node: usize, at: SocketAddr| {
        layout(&cluster, node)["joining"].to_string().contains(&url(at))
    };
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    wait_until("all know it", || (0..3).all(|node| asks(node, joiner.at)));
    let other = Joiner { of: url(cluster.address(1)), ..Joiner::new(&cluster, "d") };
    let why = other.start_refused(&tempfile::tempdir().unwrap(), |_| {});
    let said = format!("another node asks to join as d too, at {}, and asked", url(joiner.at));
    assert!(why.contains(&said), "{why}");
    // A request with d's own URL may come from the same node with another disk.
    for (url, status) in [("http://127.0.0.1:4", 409), (&*url(joiner.at), 202)] {
        let (is, body) = asks_by_hand(&cluster, 2, url);
        assert_eq!(is, status, "{body}");
        assert_eq!(body.contains("counts once that one asks no more"), is == 202, "{body}");
    }
    assert!((0..3).all(|node| asks(node, joiner.at)));
    apply_change(&cluster, 0, &["--add", "d"]);
    let d = starts.join().unwrap();
    wait_until("its being a member", || membership(&d) == "member");
}

#[test]
fn a_listed_node_that_lost_its_disk_is_told_to_start_with_the_list() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.kill(1);
    cluster.wipe(1);
    let joiner = Joiner { at: cluster.address(1), ..Joiner::new(&cluster, "n1") };
    let data = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let why = joiner.start_refused(&data, |_| ());
        assert!(why.contains("node n1 is one of those that --cluster lists"), "{why}");
        assert!(why.contains("start it with the same --cluster as the others"), "{why}");
    }
    // Follows the advice in the error message.
    cluster.up(1);
    cluster.wait_until_settled();
    read(&cluster);
    // After the cluster's first change, the node may also join like a new node.
    apply_change(&cluster, 0, &["--council", "n0"]);
    cluster.kill(1);
    cluster.wipe(1);
    let one = joiner.starts(tempfile::tempdir().unwrap()).join().unwrap();
    wait_until("its being a member", || membership(&one) == "member");
    for number in 0..KEYS {
        assert_eq!(one.client().get(&key(number)).body(), b"value");
    }
}

#[test]
fn a_node_that_joined_and_lost_its_disk_takes_its_place_again() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    // Three of the four nodes store each key, so d has three quarters of the keys.
    apply_change(&cluster, 0, &["--add", "d"]);
    let d = starts.join().unwrap();
    wait_until("its being a member", || membership(&d) == "member");
    let held = d.client().get("/v0/entities?start=%00&local=true").chunks.len();
    assert!(held > KEYS / 2, "{held}");

    // While d is up, no other process can replace it.
    let other = Joiner { at: ports::addresses(1)[0], ..Joiner::new(&cluster, "d") };
    let advertise = url(joiner.at);
    let why = other.start_refused(&tempfile::tempdir().unwrap(), |command| {
        command.args(["--advertise", &advertise]);
    });
    assert!(why.contains("node d is a member already, and up with another data dir"), "{why}");
    drop(d);
    let why = other.start_refused(&tempfile::tempdir().unwrap(), |_| ());
    assert!(why.contains(&format!("node d is a member already, at {advertise}")), "{why}");

    // The name d can't be given to another node by a plan either, and d needs no plan.
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
    assert_eq!(apply_change(&cluster, 1, &["--council", "n0,n1,d"]), 6, "it can be a councillor");
}

/// Runs a command that must be refused; returns the reason.
fn refusal_of(cluster: &Cluster, node: usize, args: &[&str]) -> String {
    let refused = cluster_command(cluster, node, args);
    assert!(!refused.status.success(), "{args:?}: {}", text(&refused.stdout));
    text(&refused.stderr)
}

fn plan_id(cluster: &Cluster, node: usize, change: &[&str]) -> String {
    plan_change(cluster, node, change)["plan"].as_str().unwrap().to_owned()
}

#[test]
fn of_two_concurrent_plans_exactly_one_is_applied_once() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    let plans = [0, 1].map(|node| plan_id(&cluster, node, &["--weight", &format!("n{node}=2")]));
    let apply = |node: usize| cluster_command(&cluster, node, &["apply", "--wait", &plans[node]]);
    let [one, other] = thread::scope(|scope| {
        [0, 1].map(|node| scope.spawn(move || apply(node))).map(|applied| applied.join().unwrap())
    });
    let done = |of: &std::process::Output| of.status.success();
    assert!(done(&one) != done(&other), "{}{}", text(&one.stderr), text(&other.stderr));
    let (first, failed) = if done(&one) { (0, other) } else { (1, one) };
    let why = text(&failed.stderr);
    let overtaken = why.contains("another change was decided before: plan again");
    assert!(overtaken || why.contains("the plan was made in epoch 1, and it is epoch"), "{why}");
    // The first plan has moved keys and is complete: no node applies it again.
    (0..4).for_each(|node| wait_for_epoch(&cluster, node, 5));
    for node in [first, 1 - first] {
        let why = refusal_of(&cluster, node, &["apply", &plans[node]]);
        assert!(why.contains("the plan was made in epoch 1, and it is epoch 5 by now"), "{why}");
    }
    let next = plan_id(&cluster, 2, &["--weight", "n3=2"]);
    assert!(cluster_command(&cluster, 2, &["apply", &next]).status.success());
    for args in [&["apply", &next][..], &["plan", "--weight", "n3=3"]] {
        let again = cluster_command(&cluster, 2, args);
        let why = text(&again.stderr);
        let is_known = why.contains("made in epoch 5") || why.contains("another change is under");
        assert!(again.status.success() || is_known, "{args:?}: {why}");
    }
    (0..4).for_each(|node| wait_for_epoch(&cluster, node, 9));
}

#[test]
fn a_plan_names_members_only_and_leaves_enough_of_them() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    assert_eq!(apply_change(&cluster, 0, &["--remove", "n3"]), 5);
    for (args, said) in [
        (&["--remove", "n3"][..], "node \"n3\" is not a member"),
        (&["--remove-dead", "n3"], "node \"n3\" is not a member"),
        (&["--add", "n1"], "node \"n1\" is a member already, at http://"),
        (&["--weight", "n3=2"], "node \"n3\" is not a member"),
        (&["--council", "n0,n1,n3"], "node \"n3\" is not a member"),
        (&["--remove", "n1,n2"], "1 nodes would be left, fewer than replicas 3"),
        (&["--remove", "n0,n1,n2"], "0 nodes would be left, fewer than replicas 3"),
        (&["--remove-dead", "n0,n1,n2", "--replicas", "1"], "0 nodes would be left"),
        (&["--remove", "n0", "--remove-dead", "n0"], "\"n0\" is removed both with its data and as"),
        (&["--weight", "n0=2", "--weight", "n0=3"], "node \"n0\" gets two weights"),
        (&["--weight", "n0=0"], "weight 0 is out of range"),
        (&["--add", "d=http://h:1;weight=0"], "weight 0 is out of range"),
        (&["--add", "d"], "does not ask this node to join (those that do: none)"),
        (&["--add", "n3"], "asks again with an empty directory only"),
    ] {
        let why = refusal_of(&cluster, 0, &[&["plan"], args].concat());
        assert!(why.contains(said), "{args:?}: {why}");
    }
    let why = refusal_of(&cluster, 0, &["abort"]);
    let says = why.contains("there is nothing to abort") && !why.contains("can't be applied");
    assert!(says, "{why}");
    // A member of the council can leave like any other node, even by a plan that it has made.
    assert!(layout(&cluster, 0)["council"].to_string().contains("n0"));
    let plan = plan_id(&cluster, 0, &["--remove", "n0", "--replicas", "2"]);
    assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
    (1..3).for_each(|node| wait_for_epoch(&cluster, node, 9));
    assert!(!layout(&cluster, 1)["council"].to_string().contains("n0"));
    wait_until("its being told", || cluster.status(0)["membership"] == "removed");
    let mut client = cluster.client(1);
    for number in 0..KEYS {
        assert_eq!(client.get(&key(number)).body(), b"value", "{}", key(number));
    }
}

#[test]
fn a_plan_warns_of_a_down_node_which_can_be_removed_as_dead() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    cluster.kill(3);
    wait_until("its being down", || cluster.status(0)["peers"][2]["up"] == false);
    assert!(!layout(&cluster, 0)["council"].to_string().contains("n3"));
    // n3 may return with a disk that has no vote, and a council of n3 alone could then decide
    // nothing.
    let why = refusal_of(&cluster, 0, &["plan", "--council", "n3"]);
    assert!(why.contains("node \"n3\" can't be a councillor"), "{why}");
    let leaves = plan_change(&cluster, 0, &["--remove", "n3"]);
    let warned = leaves["warnings"].to_string();
    assert!(warned.contains("n3 can't be reached from this node"), "{warned}");
    assert!(warned.contains("remove it with --remove-dead in this plan"), "{warned}");
    // The removal waits for n3, which is down; the addition waits for d, which never starts.
    for (change, stage, late, epoch) in [
        (&["--remove", "n3"][..], "read old", "n3 (down)", 4),
        (&["--add", "d"], "prepare", "d (down)", 6),
    ] {
        let plan = match stage {
            "prepare" => Joiner::new(&cluster, "d").ask_then_kill(&cluster),
            _ => plan_id(&cluster, 0, change),
        };
        assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
        wait_until("the stage", || layout(&cluster, 0)["stage"] == stage);
        wait_until("its being named", || {
            let status = text(&cluster_command(&cluster, 0, &["status"]).stdout);
            let url = format!("http://{}", cluster.address(0));
            let abort = format!("kvorum cluster abort --url {url}, and plan again: ");
            status.lines().any(|line| line.contains(late) && line.contains(&abort))
        });
        let asked = cluster_command(&cluster, 0, &["abort", "--json"]);
        let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
        assert_eq!((&asked["node"], &asked["epoch"]), (&"n0".into(), &(epoch - 1).into()));
        wait_until("the end", || layout(&cluster, 0)["stage"] == "settled");
        assert_eq!(layout(&cluster, 0)["epoch"], epoch);
    }
    assert_eq!(apply_change(&cluster, 0, &["--remove-dead", "n3"]), 10);
    read(&cluster);
    cluster.up(3);
    wait_until("its being told", || cluster.status(3)["membership"] == "removed");
}

fn layout_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

/// Aborts a change right after it was applied, while the council is about to decide it.
#[test]
fn an_abort_right_after_apply_reverts_the_change() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let client = &mut cluster.client(0);
    for (name, epoch) in [("d", 3), ("e", 5), ("f", 7)] {
        let plan = Joiner::new(&cluster, name).ask_then_kill(&cluster);
        let apply = client.request("POST", &format!("/admin/layout/apply?plan={plan}"), b"");
        assert_eq!(apply.status, 202, "{}", text(&apply.body()));
        assert_eq!(layout_of(&apply.body())["change"]["plan"], *plan);
        let abort = client.request("POST", "/admin/layout/abort", b"");
        assert_eq!(abort.status, 202, "{}", text(&abort.body()));
        let before = layout_of(&abort.body());
        assert_eq!(before["stage"], "prepare", "it tells what it goes back from");
        (0..3).for_each(|node| wait_for_epoch(&cluster, node, epoch));
        assert_eq!(layout(&cluster, 0)["nodes"].as_array().map(Vec::len), Some(3));
    }
    let abort = client.request("POST", "/admin/layout/abort", b"");
    assert_eq!((abort.status, &abort.json()["type"]), (409, &"plan-refused".into()));
}

#[test]
fn a_plan_warns_of_a_node_that_did_not_ask_and_of_removing_a_live_node_as_dead() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    let add = plan_change(&cluster, 0, &["--add", "d=http://127.0.0.1:9"]);
    assert!(add["warnings"].to_string().contains("d has not asked to join"), "{add}");
    let plan = add["plan"].as_str().unwrap();
    let why = refusal_of(&cluster, 0, &["apply", plan]);
    assert!(why.contains("node \"d\" has not asked to join: nothing was changed"), "{why}");
    let remove = plan_change(&cluster, 0, &["--remove-dead", "n3"]);
    assert!(remove["warnings"].to_string().contains("n3 is up: --remove-dead"), "{remove}");
    let alive = plan_change(&cluster, 0, &["--remove", "n3"]);
    assert!(!alive.to_string().contains("is up"), "{alive}");
    assert_eq!(layout(&cluster, 0)["epoch"], 1);
}

/// Probes of a process supervisor must see a waiting node as alive, but not as ready for requests.
#[test]
fn a_node_that_waits_for_its_place_is_alive_and_not_ready() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    let get = |target: &str| Client::connect(joiner.at).get(target);
    let health = get("/healthz");
    assert_eq!((health.status, health.body()), (200, b"ok\n".to_vec()));
    let ready = get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(text(&ready.body()).starts_with("joining: "), "{}", text(&ready.body()));
    let data = get("/v0/entity?id=k");
    let problem = data.json();
    assert_eq!((data.status, &problem["type"]), (503, &"joining".into()), "{problem}");
    assert_eq!(problem["outcome"], "none");
    apply_change(&cluster, 0, &["--add", "d"]);
    let d = starts.join().unwrap();
    wait_until("it is ready", || d.client().get("/readyz").status == 200);
}

#[test]
fn a_name_with_a_comma_can_not_join() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let joiner = Joiner::new(&cluster, "d,e");
    let why = joiner.start_refused(&tempfile::tempdir().unwrap(), |_| ());
    assert!(why.contains("--name \"d,e\" has a comma"), "{why}");
}

#[test]
fn a_joiner_that_dies_in_the_middle_goes_on() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    let joiner = Joiner::new(&cluster, "d");
    let starts = joiner.asks(&cluster);
    let plan = plan_id(&cluster, 0, &["--add", "d"]);
    assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
    // Kills d when it has just become a member, and again while keys move.
    let data = starts.join().unwrap().kill();
    assert_ne!(layout(&cluster, 0)["stage"], "settled", "it is waited for");
    let d = joiner.starts(data).join().unwrap();
    wait_until("keys move", || layout(&cluster, 0)["stage"] != "prepare");
    let d = joiner.starts(d.kill()).join().unwrap();
    wait_for_epoch_on_all(&cluster, 5);
    wait_until("its being a member", || membership(&d) == "member");
    assert!(d.client().get("/v0/entities?start=%00&local=true").chunks.len() > KEYS / 2);
    read(&cluster);
}

/// A suspended process keeps its connections open. Requests bypass the process, and the change
/// continues after the process does.
#[test]
fn a_joiner_that_hangs_costs_no_request() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    write(&cluster);
    let starts = Joiner::new(&cluster, "d").asks(&cluster);
    let plan = plan_id(&cluster, 0, &["--add", "d"]);
    assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
    let d = starts.join().unwrap();
    wait_until("keys move", || layout(&cluster, 0)["stage"] == "read old");
    d.signal(Signal::STOP);
    let mut client = cluster.client(1);
    for number in 0..KEYS {
        let put = client.put(&key(number), b"value");
        assert_eq!(put.status, 201, "{}", text(&put.body()));
    }
    read(&cluster);
    d.signal(Signal::CONT);
    wait_for_epoch_on_all(&cluster, 5);
    wait_until("its being a member", || membership(&d) == "member");
    read(&cluster);
}

fn wait_for_epoch_on_all(cluster: &Cluster, epoch: u64) {
    (0..3).for_each(|node| wait_for_epoch(cluster, node, epoch));
}

#[test]
fn a_join_refuses_a_directory_with_other_data() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let joiner = Joiner::new(&cluster, "d");
    // The directories of a single node, and of a node of another cluster.
    let alone = Node::start(&["--name", "d", "--log", "warn"]).stop();
    let why = joiner.start_refused(&alone, |_| ());
    assert!(why.contains("it is that of node d"), "{why}");
    assert!(why.contains("--join takes an empty one"), "{why}");
    let mut other = Cluster::start(2, &[]);
    other.wait_until_settled();
    other.stop(1);
    let why = joiner.start_refused(&other.take_data(1), |_| ());
    assert!(why.contains("it is that of node n1"), "{why}");
    // A directory with other files, which is not a store.
    let full = tempfile::tempdir().unwrap();
    std::fs::create_dir(full.path().join("data")).unwrap();
    std::fs::write(full.path().join("data/notes.txt"), "mine").unwrap();
    let why = joiner.start_refused(&full, |_| ());
    assert!(why.contains("notes.txt") || why.contains("not empty"), "{why}");
    assert_eq!(std::fs::read(full.path().join("data/notes.txt")).unwrap(), b"mine");
    let why = joiner.start_refused(&tempfile::tempdir().unwrap(), |command| {
        command.env("KVORUM_CLUSTER_SECRET", "a secret that the cluster does not have");
    });
    assert!(why.contains("does not know this node's cluster secret"), "{why}");
}

#[test]
fn once_reads_have_switched_there_is_no_way_back() {
    let cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    let mut weight = 1;
    // The stage "read new" lasts at least half a second. If this process was delayed for longer and
    // missed the stage, the loop tries the next plan.
    let why = loop {
        weight += 1;
        assert!(weight < 8, "it is never seen");
        let plan = plan_id(&cluster, 0, &["--weight", &format!("n0={weight}")]);
        assert!(cluster_command(&cluster, 0, &["apply", &plan]).status.success());
        wait_until("the stage", || layout(&cluster, 0)["stage"] == "read old");
        wait_until("the switch", || layout(&cluster, 0)["stage"] != "read old");
        let why = refusal_of(&cluster, 0, &["abort"]);
        wait_until("its end", || layout(&cluster, 0)["stage"] == "settled");
        if !why.contains("there is nothing to abort") {
            break why;
        }
    };
    assert!(
        why.contains("reads use the new replicas already: the change can't be aborted"),
        "{why}"
    );
}
