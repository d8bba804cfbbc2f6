//! Two clusters with nodes of the same names, on one machine. Their nodes must never exchange data,
//! at whichever address and with whichever directory they start. Also nodes that are killed or
//! replaced while a cluster is new.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use kit::raw::Client;
use rustix::process::Signal;
use serde_json::Value;

use crate::changes::Joiner;
use crate::cluster::{Cluster, key};
use crate::http2::metric;
use crate::moves::{apply_change, cluster_command, layout, plan_change};
use crate::process::{Node, kvorum, run, wait_until};

const KEYS: usize = 40;

/// Waits until all nodes of a cluster have its id; returns the id.
fn id(cluster: &Cluster) -> String {
    let of = |node| cluster.status(node)["cluster_id"].as_str().map(str::to_owned);
    wait_until("a cluster id", || (0..3).all(|node| of(node).is_some()));
    let id = of(0).unwrap();
    assert!((1..3).all(|node| of(node).as_ref() == Some(&id)), "one id for all: {id}");
    id
}

/// Starts two clusters with different values under the same keys; returns the clusters and their
/// ids.
fn two() -> ([Cluster; 2], [String; 2]) {
    let clusters = [Cluster::start(3, &[]), Cluster::start(3, &[])];
    clusters.iter().for_each(Cluster::wait_until_settled);
    let ids = [id(&clusters[0]), id(&clusters[1])];
    assert_ne!(ids[0], ids[1], "the same names, and two clusters");
    clusters[0].fill(KEYS, b"of g");
    clusters[1].fill(KEYS, b"of h");
    (clusters, ids)
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

fn status(node: &Node) -> Value {
    serde_json::from_slice(&node.client().get("/v0/status").body()).unwrap()
}

/// Returns true if a node has a connection to the node `name`.
fn sees(cluster: &Cluster, node: usize, name: &str) -> bool {
    let status = cluster.status(node);
    let peers = status["peers"].as_array().unwrap();
    peers.iter().any(|peer| peer["name"] == name && peer["up"] == true)
}

/// Asserts that a log reports the refusal of a node of another cluster, with the ids of both
/// clusters.
fn refuses(log: &str, ids: &[String; 2]) {
    let line = log.lines().find(|line| line.contains("belongs to cluster")).unwrap_or_else(|| {
        panic!("nothing is refused: {log}");
    });
    for what in [&ids[0], &ids[1], "http://127.0.0.1:", "exchange nothing", "--cluster"] {
        assert!(line.contains(what), "{what}: {line}");
    }
}

/// Asserts that the commands report node n1 as a node of another cluster, and not as down.
fn is_shown_as_of_another_cluster(cluster: &Cluster, ids: &[String; 2]) {
    let url = format!("http://{}", cluster.address(0));
    for command in [&["status", "--url", &url][..], &["cluster", "status", "--url", &url]] {
        let output = run(command);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {text}");
        let row = text.lines().find(|line| line.starts_with("n1 ")).unwrap();
        assert!(row.contains("other cluster ID") && !row.contains("down"), "{text}");
        let why = format!("other cluster ID {}, where this cluster has {}", ids[1], ids[0]);
        assert!(text.contains(&why) && !text.contains("--remove-dead"), "{text}");
    }
    let cluster: Value =
        serde_json::from_slice(&cluster.client(0).get("/v0/cluster").body()).unwrap();
    let row = &cluster["nodes"][1];
    assert_eq!((&row["up"], &row["other_cluster_id"]), (&false.into(), &ids[1].as_str().into()));
}

#[test]
fn a_node_that_starts_at_an_address_of_another_cluster_is_refused_by_it() {
    let ([mut g, mut h], ids) = two();
    g.kill(1);
    h.kill(1);
    let (g_url, h_url) = (format!("http://{}", g.address(1)), format!("http://{}", h.address(1)));
    let own = h.list_with(&h_url, &g_url);
    let at = g.address(1).to_string();
    let data = h.take_data(1);
    let args = ["--cluster", &own, "--log", "warn"];
    let stray = Node::start_at(&at, kvorum(), data, &args);
    let peers = || {
        let status = status(&stray);
        status["peers"].as_array().unwrap().iter().filter(|peer| peer["up"] == true).count()
    };
    wait_until("meeting its own cluster", || peers() == 2);
    assert_eq!(status(&stray)["cluster_id"], ids[1].as_str());
    g.has(0..KEYS, b"of g");
    h.has(0..KEYS, b"of h");
    for number in 0..KEYS {
        let got = stray.client().get(&key(number));
        assert_eq!((got.status, got.body()), (200, b"of h".to_vec()));
    }
    g.fill_with_ack(2, KEYS, b"of g, later");
    g.has(0..KEYS, b"of g, later");
    h.has(0..KEYS, b"of h");
    assert!(!sees(&g, 0, "n1") && !sees(&g, 2, "n1"));
    is_shown_as_of_another_cluster(&g, &ids);
    // The separation survives restarts.
    g.stop(2);
    g.up(2);
    wait_until("meeting the other one", || sees(&g, 2, "n0"));
    g.has(0..KEYS, b"of g, later");
    refuses(&g.stop_for_its_log(0), &ids);
    refuses(&stray.stop_for_its_log(), &ids);
    g.up(0);
    g.up(1);
    g.wait_until_settled();
    g.has(0..KEYS, b"of g, later");
}

#[test]
fn a_directory_of_another_cluster_is_refused_by_all() {
    let ([mut g, mut h], ids) = two();
    g.stop(1);
    h.stop(1);
    let own = g.take_data(1);
    let copied = tempfile::tempdir().unwrap();
    copy(&h.data(1), &copied.path().join("data"));
    g.put_back(1, copied);
    // Node n2 is down: if n0 counted the node of the other cluster, there would be a majority.
    g.kill(2);
    g.up(1);
    wait_until("coming up", || g.status(1)["cluster_id"] == ids[1].as_str());
    for number in 0..4 {
        let got = g.client(0).get(&key(number));
        assert_ne!(got.status, 200, "one node of three is no majority");
    }
    assert!(!sees(&g, 0, "n1"));
    g.up(2);
    g.wait_until_settled_except(1);
    g.has(0..KEYS, b"of g");
    wait_until("not ready", || g.client(1).request("GET", "/readyz", b"").status == 503);
    let ready = g.client(1).request("GET", "/readyz", b"");
    assert!(ready.body().starts_with(b"other cluster: each node that"), "{ready:?}");
    assert_eq!(g.client(0).request("GET", "/readyz", b"").status, 200);
    refuses(&g.stop_for_its_log(1), &ids);
    g.put_back(1, own);
    g.up(1);
    g.wait_until_settled();
    assert_eq!(g.client(1).request("GET", "/readyz", b"").status, 200);
    g.has(0..KEYS, b"of g");
    h.up(1);
    h.wait_until_settled();
    h.has(0..KEYS, b"of h");
}

#[test]
fn swapped_directories_are_refused_and_lose_nothing() {
    let ([mut g, mut h], ids) = two();
    // Swapped directories of two nodes of one cluster: neither starts.
    g.stop(0);
    g.stop(1);
    let (zero, one) = (g.take_data(0), g.take_data(1));
    g.put_back(0, one);
    g.put_back(1, zero);
    for (own, theirs) in [("n0", "n1"), ("n1", "n0")] {
        let said = g.expect_refused_start(usize::from(own == "n1"));
        let why = format!("this is node {own}, but the directory belongs to node {theirs}");
        assert!(said.contains(&why), "{said}");
    }
    let (one, zero) = (g.take_data(0), g.take_data(1));
    g.put_back(0, zero);
    g.put_back(1, one);
    g.up(0);
    g.up(1);
    g.wait_until_settled();
    g.has(0..KEYS, b"of g");
    // Swapped directories of the same node of two clusters: each node starts, and no node exchanges
    // data with it.
    g.stop(1);
    h.stop(1);
    let (of_g, of_h) = (g.take_data(1), h.take_data(1));
    g.put_back(1, of_h);
    h.put_back(1, of_g);
    for (cluster, own, strange) in [(&mut g, 0, 1), (&mut h, 1, 0)] {
        cluster.up(1);
        wait_until("its id", || cluster.status(1)["cluster_id"] == ids[strange].as_str());
        assert_eq!(cluster.status(0)["cluster_id"], ids[own].as_str());
        let value: &[u8] = [b"of g, later" as &[u8], b"of h, later"][own];
        cluster.fill_with_ack(2, KEYS, value);
        cluster.has(0..KEYS, value);
        assert!(!sees(cluster, 0, "n1") && !sees(cluster, 2, "n1"));
        refuses(&cluster.stop_for_its_log(1), &[ids[strange].clone(), ids[own].clone()]);
    }
    let (of_h, of_g) = (g.take_data(1), h.take_data(1));
    g.put_back(1, of_g);
    h.put_back(1, of_h);
    for (cluster, value) in [(&mut g, b"of g, later"), (&mut h, b"of h, later")] {
        cluster.up(1);
        cluster.wait_until_settled();
        cluster.has(0..KEYS, value);
    }
}

#[test]
fn a_node_whose_cluster_has_no_id_yet_is_refused_by_another_cluster() {
    let mut g = Cluster::start(3, &[]);
    g.wait_until_settled();
    let id = id(&g);
    g.fill(KEYS, b"of g");
    // With two of its three nodes up, a new cluster accepts writes and has no id yet.
    let mut h = Cluster::create_stopped(3, &[]);
    h.up(0);
    h.up(1);
    let mut client = h.client(0);
    for number in 0..KEYS {
        assert_eq!(client.put(&key(number), b"of h").status, 201);
    }
    assert!(h.status(0)["cluster_id"].is_null() && h.status(1)["cluster_id"].is_null());
    wait_until("knowing each other", || sees(&h, 1, "n0"));
    h.stop(1);
    g.kill(1);
    let (g_url, h_url) = (format!("http://{}", g.address(1)), format!("http://{}", h.address(1)));
    let list = h.list_with(&h_url, &g_url);
    let (at, data) = (g.address(1).to_string(), h.take_data(1));
    let args = ["--cluster", &list, "--log", "warn"];
    let stray = Node::start_at(&at, kvorum(), data, &args);
    let peers = || status(&stray);
    wait_until("meeting its own cluster", || peers()["peers"][0]["up"] == true);
    assert!(peers()["cluster_id"].is_null(), "it takes no id of theirs: {id}");
    let refused = || metric(&stray, "kvorum_peer_handshakes_refused_total");
    wait_until("being asked by the other cluster", || refused() > 0);
    g.has(0..KEYS, b"of g");
    assert!(!sees(&g, 0, "n1") && !sees(&g, 2, "n1"));
    let log = stray.stop_for_its_log();
    assert!(log.contains("are of two clusters with the same names"), "{log}");
    g.up(1);
    g.wait_until_settled();
    g.has(0..KEYS, b"of g");
}

#[test]
fn a_node_that_two_clusters_add_belongs_to_the_first_one() {
    let ([g, h], ids) = two();
    let joiner = Joiner::new(&g, "d").also(&h);
    let starts = joiner.asks(&g);
    let asks_h = || layout(&h, 0)["joining"].as_array().is_some_and(|joining| !joining.is_empty());
    wait_until("asking the other one", asks_h);
    let plan = plan_change(&h, 0, &["--add", "d"]);
    apply_change(&g, 0, &["--add", "d"]);
    let d = starts.join().unwrap();
    wait_until("being a member", || status(&d)["membership"] == "member");
    assert_eq!(status(&d)["cluster_id"], ids[0].as_str());
    let plan = plan["plan"].as_str().unwrap();
    assert!(cluster_command(&h, 0, &["apply", plan]).status.success());
    wait_until("the other one's list", || {
        h.status(1)["peers"].as_array().unwrap().iter().any(|peer| peer["name"] == "d")
    });
    h.fill_with_ack(2, KEYS, b"of h, later");
    g.has(0..KEYS, b"of g");
    h.has(0..KEYS, b"of h, later");
    let got = d.client().get(&key(0));
    assert_eq!((got.status, got.body()), (200, b"of g".to_vec()));
    assert!(!sees(&h, 1, "d"));
    let refused = || metric(&d, "kvorum_peer_handshakes_refused_total");
    wait_until("being asked by the other cluster", || refused() > 0);
    let log = d.stop_for_its_log();
    assert!(ids.iter().all(|id| log.contains(id)), "{log}");
}

#[test]
fn replaced_disks_take_the_id_of_their_cluster() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let first = id(&cluster);
    cluster.fill(KEYS, b"kept");
    for node in [0, 1, 2] {
        cluster.kill(node);
        cluster.wipe(node);
        cluster.up(node);
        wait_until("its id", || cluster.status(node)["cluster_id"].as_str() == Some(&first));
        cluster.wait_until_settled();
    }
    cluster.has(0..KEYS, b"kept");
    // Two disks are lost at once. For the data that only they had, no majority remains, so the
    // nodes are readmitted.
    for node in [0, 1] {
        cluster.kill(node);
        cluster.wipe(node);
    }
    cluster.kill(2);
    cluster.up(0);
    cluster.up(1);
    wait_until("meeting each other", || sees(&cluster, 0, "n1"));
    cluster.up(2);
    cluster.wait_until_settled();
    assert_eq!(id(&cluster), first);
    cluster.has(0..KEYS, b"kept");
}

/// A disk is replaced while the cluster has no id yet. The node then shares data with a node that
/// its former disk had not met, so two nodes refuse each other. `kvorum status` names the directory
/// to empty.
#[test]
fn a_disk_replaced_before_the_cluster_has_an_id_is_named_with_the_remedy() {
    let mut cluster = Cluster::create_stopped(3, &[]);
    let met = |cluster: &Cluster, node, name| {
        wait_until("a connection", || sees(cluster, node, name));
    };
    cluster.up(0);
    cluster.up(2);
    met(&cluster, 2, "n0");
    assert_eq!(cluster.client(0).put(&key(0), b"first").status, 201);
    cluster.kill(0);
    cluster.kill(2);
    cluster.wipe(0);
    cluster.up(0);
    cluster.up(1);
    met(&cluster, 0, "n1");
    assert_eq!(cluster.client(0).put(&key(1), b"second").status, 201);
    // A node records in its next tick, a fraction of a second later, that it shares data with other
    // nodes.
    let uptime = || cluster.status(0)["uptime_s"].as_u64().unwrap();
    let put_at = uptime();
    wait_until("the next ticks", || uptime() >= put_at + 2);
    cluster.up(2);
    met(&cluster, 2, "n1");
    let url = format!("http://{}", cluster.address(1));
    let told = || String::from_utf8(run(&["status", "--url", &url]).stdout).unwrap();
    let remedy = "then start n0 with an empty directory once more, but keep the directory of n2";
    wait_until("the remedy, and no other", || {
        let told = told();
        told.contains(remedy) && !told.contains("start all nodes of the list once")
    });
    cluster.kill(0);
    cluster.wipe(0);
    cluster.up(0);
    id(&cluster);
    cluster.wait_until_settled();
    cluster.has(0..1, b"first");
    cluster.has(1..2, b"second");
}

#[test]
fn a_node_killed_right_after_its_first_answer_serves_as_soon_as_it_is_back() {
    for (round, signal) in
        [Signal::KILL, Signal::KILL, Signal::TERM, Signal::KILL].iter().enumerate()
    {
        let mut cluster = Cluster::start(3, &[]);
        let killed = round % 3;
        let first = cluster.client(killed).put(&key(0), b"first");
        assert_eq!(first.status, 201, "{}", String::from_utf8_lossy(&first.body()));
        if *signal == Signal::KILL {
            cluster.kill(killed)
        } else {
            cluster.stop(killed)
        }
        cluster.up(killed);
        for number in 0..30 {
            for node in 0..3 {
                let mut client = cluster.client(node);
                let put = client.put(&key(number + 1), b"later");
                assert_eq!(put.status, 201, "{round}: {}", String::from_utf8_lossy(&put.body()));
                let got = client.get(&key(number / 2));
                assert_eq!(got.status, 200, "{round}: {}", String::from_utf8_lossy(&got.body()));
                let none = client.get("/v0/entity?id=none");
                assert_eq!(none.status, 404, "{round}: {}", String::from_utf8_lossy(&none.body()));
            }
        }
    }
}

/// Sends additions and conditional writes through two processes that claim to be the same node.
/// Each acknowledged addition must count once, and of two conditional writes of one key exactly one
/// must succeed. A write answered with 504 may take effect or not.
fn are_told_apart(cluster: &Cluster, second: &Node) {
    let processes = [cluster.address(0), second.address];
    let send = |address, request: String| {
        let mut client = Client::connect(address);
        client.send(request);
        client.response().status
    };
    let (mut done, mut unknown) = (0, 0);
    for number in 0..4 {
        let (mut winners, mut undecided) = (0, 0);
        for address in processes {
            let add = "POST /v0/entity?id=sum&add=1 HTTP/1.1\r\nHost: localhost\r\n";
            let added = send(address, format!("{add}Content-Length: 0\r\n\r\n"));
            done += u32::from(added == 200);
            unknown += u32::from(added == 504);
            let lock = format!("PUT /v0/entity?id=lock-{number} HTTP/1.1\r\nHost: localhost\r\n");
            let condition = "If-None-Match: *\r\nContent-Length: 1\r\n\r\nx";
            let locked = send(address, format!("{lock}{condition}"));
            winners += u32::from(locked == 201);
            undecided += u32::from(locked == 504);
        }
        assert!(winners == 1 || winners == 0 && undecided > 0, "lock {number}: {winners} winners");
    }
    let sum = cluster.client(1).get("/v0/entity?id=sum").body();
    let sum: u32 = String::from_utf8(sum).unwrap().parse().unwrap();
    assert!((done..=done + unknown).contains(&sum), "{sum}, {done} answered, {unknown} unknown");
}

#[test]
fn a_process_with_an_empty_directory_takes_no_running_nodes_place() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.fill(KEYS, b"kept");
    let second = cluster.twin(0, tempfile::tempdir().unwrap());
    are_told_apart(&cluster, &second);
    cluster.has(0..KEYS, b"kept");
    assert_eq!(cluster.status(0)["membership"], "member");
    assert_ne!(status(&second)["membership"], "member");
    let log = second.stop_for_its_log();
    assert!(log.contains("another process that runs as this node, n0"), "{log}");
    // A replacement process waits, and becomes a member after the other process has exited.
    let second = cluster.twin(0, tempfile::tempdir().unwrap());
    cluster.kill(0);
    wait_until("taking the place", || status(&second)["membership"] == "member");
}

#[test]
fn a_process_that_comes_back_after_it_was_replaced_is_fenced() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.signal(0, Signal::STOP);
    let second = cluster.twin(0, tempfile::tempdir().unwrap());
    wait_until("taking the place", || status(&second)["membership"] == "member");
    cluster.signal(0, Signal::CONT);
    wait_until("the fence", || cluster.status(0)["membership"] == "fenced");
    are_told_apart(&cluster, &second);
}

/// A node that lost its disk is started without a list. It serves a separate store at a member's
/// URL, to which clients of the cluster send writes.
#[test]
fn a_store_of_its_own_at_a_members_url_says_which_cluster_looks_for_its_member_there() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let id = id(&cluster);
    cluster.stop(2);
    let at = cluster.address(2).to_string();
    let alone = ["--log", "warn"];
    let mut stray = Node::start_at(&at, kvorum(), tempfile::tempdir().unwrap(), &alone);
    let mut log = BufReader::new(stray.take_stderr()).lines().map(Result::unwrap);
    let said = log.find(|line| line.contains("is a store of its own")).unwrap();
    assert!(said.contains("ERROR"), "{said}");
    for what in [&id, "its member n2", "--cluster (or --join)", "with an empty directory"] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let url = format!("http://{}", cluster.address(0));
    wait_until("the members' noticing it", || {
        let output = run(&["status", "--url", &url]);
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.code() == Some(1) && text.contains("another node answers at this URL")
    });
    assert!(!sees(&cluster, 0, "n2") && !sees(&cluster, 1, "n2"));
}
