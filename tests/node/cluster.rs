//! A cluster of real node processes, for all tests. Also tests of quorums, of a node that is down
//! for a while, of ranges, and of a wiped disk.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::ports;
use kit::process::Process;
use kit::raw::{Client, Response};
use rustix::process::Signal;
use rustls::ClientConfig;
use tempfile::TempDir;

use crate::process::{Node, TIMEOUT, kvorum, run, wait_until};

/// Number of the arguments that every node gets: `--cluster` and `--log`, each with its value.
const COMMON_ARGS: usize = 4;

/// A cluster of nodes with the names `n0`, `n1` …, each on its own port.
pub(crate) struct Cluster {
    addresses: Vec<SocketAddr>,
    nodes: Vec<Option<Node>>,
    down: Vec<Option<TempDir>>,
    args: Vec<String>,
    /// TLS configuration of clients; `None` if the nodes serve plaintext.
    tls: Option<Arc<ClientConfig>>,
}

/// Formats the nodes' names and URLs as a value of `--cluster`.
fn format_list(addresses: &[SocketAddr], scheme: &str) -> String {
    let node = |(number, at)| format!("n{number}={scheme}://{at}");
    addresses.iter().enumerate().map(node).collect::<Vec<_>>().join(",")
}

impl Cluster {
    pub(crate) fn start(count: usize, args: &[&str]) -> Self {
        Self::of(count, args, None)
    }

    /// Starts a cluster with TLS, which `args` configure.
    pub(crate) fn start_with_tls(count: usize, args: &[&str], tls: Arc<ClientConfig>) -> Self {
        Self::of(count, args, Some(tls))
    }

    fn of(count: usize, args: &[&str], tls: Option<Arc<ClientConfig>>) -> Self {
        let mut cluster = Self::new_unstarted(count, args, tls);
        (0..count).for_each(|node| cluster.up(node));
        cluster
    }

    /// Creates a cluster without starting its nodes.
    pub(crate) fn create_stopped(count: usize, args: &[&str]) -> Self {
        Self::new_unstarted(count, args, None)
    }

    fn new_unstarted(count: usize, args: &[&str], tls: Option<Arc<ClientConfig>>) -> Self {
        let addresses = ports::addresses(count as u16);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let list = format_list(&addresses, scheme);
        let mut all = vec!["--cluster".to_owned(), list, "--log".to_owned()];
        all.push("warn".to_owned());
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let down = (0..count).map(|_| Some(tempfile::tempdir().unwrap())).collect();
        let nodes = (0..count).map(|_| None).collect();
        Self { addresses, nodes, down, args: all, tls }
    }

    /// Returns the `--cluster` list, with `url` replaced by `other`.
    pub(crate) fn list_with(&self, url: &str, other: &str) -> String {
        self.args[1].replace(url, other)
    }

    /// Replaces the arguments of all nodes that start from now on, except the common ones.
    pub(crate) fn with(&mut self, args: &[&str]) {
        self.args.truncate(COMMON_ARGS);
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    /// Gives other addresses to all nodes, which must be down, and changes `--cluster` accordingly.
    pub(crate) fn change_all_addresses(&mut self) {
        self.addresses = ports::addresses(self.addresses.len() as u16);
        self.args[1] = format_list(&self.addresses, "http");
    }

    /// Gives one node another address. Nodes that start from now on get a list with the new
    /// address. Returns the previous list.
    pub(crate) fn change_address(&mut self, node: usize) -> String {
        self.addresses[node] = ports::addresses(1)[0];
        self.lists(format_list(&self.addresses, "http"))
    }

    /// Replaces the `--cluster` list of the nodes that start from now on. Returns the previous
    /// list.
    pub(crate) fn lists(&mut self, list: String) -> String {
        std::mem::replace(&mut self.args[1], list)
    }

    pub(crate) fn up(&mut self, node: usize) {
        self.start_by(node, kvorum());
    }

    /// Starts a node by `command` instead of the plain binary.
    pub(crate) fn start_by(&mut self, node: usize, command: Command) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let data = self.down[node].take().unwrap();
        let at = self.addresses[node].to_string();
        self.nodes[node] = Some(Node::start_at(&at, command, data, &args));
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.down[node] = Some(self.nodes[node].take().unwrap().kill());
    }

    pub(crate) fn stop(&mut self, node: usize) {
        self.down[node] = Some(self.nodes[node].take().unwrap().stop());
    }

    /// Stops a node; returns its log.
    pub(crate) fn stop_for_its_log(&mut self, node: usize) -> String {
        let mut stopped = self.nodes[node].take().unwrap();
        self.down[node] = Some(std::mem::replace(&mut stopped.data, tempfile::tempdir().unwrap()));
        stopped.stop_for_its_log()
    }

    /// Returns the data directory of a node, whether it is up or down.
    pub(crate) fn data(&self, node: usize) -> PathBuf {
        let up = self.nodes[node].as_ref().map(|node| node.data.path());
        up.unwrap_or_else(|| self.down[node].as_ref().unwrap().path()).join("data")
    }

    /// Starts another process that claims to be `node`, at another address and with this directory.
    pub(crate) fn twin(&self, node: usize, data: TempDir) -> Node {
        let mut args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let url = format!("http://{}", self.addresses[node]);
        args.extend(["--advertise", &url]);
        Node::start_at("127.0.0.1:0", kvorum(), data, &args)
    }

    /// Writes `keys` keys through the first node, each acknowledged by three replicas.
    pub(crate) fn fill(&self, keys: usize, value: &[u8]) {
        self.fill_with_ack(3, keys, value);
    }

    /// Writes `keys` keys through the first node, each acknowledged by `copies` of three replicas.
    pub(crate) fn fill_with_ack(&self, copies: u8, keys: usize, value: &[u8]) {
        let mut client = self.client(0);
        for number in 0..keys {
            let target = format!("{}&ack={copies}&from=3", key(number));
            // On a busy machine a replica may acknowledge a write only after the deadline.
            wait_until("a write to all", || {
                let put = client.put(&target, value);
                let why = String::from_utf8_lossy(&put.body()).into_owned();
                assert!(matches!(put.status, 201 | 503 | 504), "{why}");
                put.status == 201
            });
        }
    }

    /// Asserts that a read of each of these keys through the first node returns this value.
    pub(crate) fn has(&self, keys: Range<usize>, value: &[u8]) {
        let mut client = self.client(0);
        for number in keys {
            let got = client.get(&key(number));
            assert_eq!((got.status, got.body()), (200, value.to_vec()), "{}", key(number));
        }
    }

    pub(crate) fn address(&self, node: usize) -> SocketAddr {
        self.addresses[node]
    }

    /// Starts a node, which must exit with an error; returns its log.
    pub(crate) fn expect_refused_start(&self, node: usize) -> String {
        let (at, data) = (self.addresses[node].to_string(), self.data(node));
        let mut command = kvorum();
        command.args(["serve", "--listen", &at, "--data"]).arg(data).args(&self.args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Process::start(&mut command).unwrap();
        let ended = process.wait_within(TIMEOUT).unwrap();
        let code = ended.unwrap_or_else(|| panic!("n{node} goes on")).code();
        let said = process.read_stderr().unwrap();
        assert_eq!(code, Some(1), "{said}");
        said
    }

    /// Returns the directory of a node that is down, and gives the node an empty one.
    pub(crate) fn take_data(&mut self, node: usize) -> TempDir {
        self.down[node].replace(tempfile::tempdir().unwrap()).unwrap()
    }

    /// Gives this directory to a node that is down.
    pub(crate) fn put_back(&mut self, node: usize, data: TempDir) {
        self.down[node] = Some(data);
    }

    /// Replaces the directory of a node that is down by an empty one.
    pub(crate) fn wipe(&mut self, node: usize) {
        self.down[node] = Some(tempfile::tempdir().unwrap());
    }

    pub(crate) fn client(&self, node: usize) -> Client {
        match &self.tls {
            None => Client::connect(self.addresses[node]),
            Some(tls) => Client::connect_tls(self.addresses[node], tls).unwrap(),
        }
    }

    pub(crate) fn pid(&self, node: usize) -> u32 {
        self.nodes[node].as_ref().unwrap().pid()
    }

    pub(crate) fn signal(&self, node: usize, signal: Signal) {
        self.nodes[node].as_ref().unwrap().signal(signal);
    }

    /// Returns the items that `node` itself stores.
    pub(crate) fn local(&self, node: usize) -> Vec<Vec<u8>> {
        self.client(node).get("/v0/entities?start=%00&local=true").chunks
    }

    pub(crate) fn status(&self, node: usize) -> serde_json::Value {
        serde_json::from_slice(&self.client(node).get("/v0/status").body()).unwrap()
    }

    /// Waits until every node is authoritative.
    pub(crate) fn wait_until_settled(&self) {
        self.wait_until_settled_except(usize::MAX);
    }

    /// Waits until every node except `other` is authoritative.
    pub(crate) fn wait_until_settled_except(&self, other: usize) {
        for node in (0..self.nodes.len()).filter(|node| *node != other) {
            wait_until("being a member", || self.status(node)["membership"] == "member");
        }
    }
}

pub(crate) fn key(number: usize) -> String {
    format!("/v0/entity?id=key{number:04}")
}

fn votes(response: &Response) -> (u64, u64, u64) {
    let json = response.json();
    let of = |name: &str| json[name].as_u64().unwrap();
    (of("acked"), of("required"), of("from"))
}

#[test]
fn any_node_coordinates_and_makes_only_the_requested_copies() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    for number in 0..60 {
        let from = number % 3 + 1;
        let put = clients[number % 2].put(&format!("{}&ack={from}&from={from}", key(number)), b"v");
        assert_eq!(put.status, 201);
        for client in &mut clients {
            let got = client.get(&format!("{}&ack=1&from={from}", key(number)));
            assert_eq!((got.status, got.body()), (200, b"v".to_vec()));
            assert_eq!(got.header("etag"), put.header("etag"));
        }
    }
    // Reads with the default quorum ask other replicas too, and must not copy records to them.
    for number in 0..60 {
        clients[2].get(&key(number));
    }
    let copies: usize = (0..3).map(|node| cluster.local(node).len()).sum();
    assert_eq!(copies, 20 + 2 * 20 + 3 * 20);
    assert_eq!(clients[1].get("/v0/entities?start=key&ack=3").chunks.len(), 60);
    assert_eq!(clients[1].delete(&key(59)).status, 202);
    assert_eq!(clients[0].get(&key(59)).status, 404);
    assert_eq!(clients[0].get(&format!("{}&from=4", key(1))).status, 400);
}

/// Asserts that a request failed because only `up` replicas are available; `needed` has its `ack`
/// and `from`. The coordinator may answer before all available replicas do.
fn assert_too_few(answer: &Response, up: u64, needed: (u64, u64)) {
    let (acked, required, from) = votes(answer);
    assert_eq!((answer.status, (required, from)), (504, needed));
    assert!(acked <= up, "{acked} of {up} acknowledged it");
    let json = answer.json();
    let list = |name: &str| json[name].as_array().unwrap().clone();
    assert_eq!(list("answered").len() as u64, acked, "{json}");
    assert_eq!(list("failed").len() as u64, from - up, "{json}");
    assert_eq!((list("answered").len() + list("pending").len()) as u64, up, "{json}");
    assert!(json["took_ms"].as_f64().is_some_and(|ms| ms < 60_000.0), "{json}");
    for failed in list("failed") {
        let (node, reason) = (failed["node"].as_str().unwrap(), failed["reason"].as_str().unwrap());
        assert!(["n1", "n2"].contains(&node), "n0 is up: {json}");
        assert!(["unreachable", "timeout"].contains(&reason), "{json}");
        let detail = json["detail"].as_str().unwrap();
        assert!(detail.contains(node) && detail.contains("; after "), "{json}");
    }
}

#[test]
fn with_a_node_down_majorities_go_on_and_the_others_are_refused_at_once() {
    let mut cluster = Cluster::start(3, &["--deadline", "60s"]);
    cluster.wait_until_settled();
    cluster.kill(2);
    let mut client = cluster.client(0);
    let begun = Instant::now();
    for number in 0..50 {
        assert_eq!(client.put(&key(number), b"new").status, 201);
        let got = client.get(&key(number));
        assert_eq!((got.status, got.body()), (200, b"new".to_vec()));
    }
    let all = client.put(&format!("{}&ack=3&from=3", key(0)), b"x");
    assert_too_few(&all, 2, (3, 3));
    assert_eq!(all.json()["outcome"], "unknown", "two replicas hold it, or will");
    let all = client.get(&format!("{}&ack=3&from=3", key(0)));
    assert_too_few(&all, 2, (3, 3));
    assert_eq!(client.get("/v0/entities?start=a").chunks.len(), 50, "a range needs two of three");
    assert_eq!(client.get("/v0/entities?start=a&ack=3&from=3").status, 504);
    cluster.kill(1);
    assert_too_few(&client.put(&key(1), b"y"), 1, (2, 3));
    let alone = client.get(&key(1));
    assert_too_few(&alone, 1, (2, 3));
    assert_eq!(client.get(&format!("{}&ack=1", key(2))).body(), b"new");
    assert!(begun.elapsed() < Duration::from_secs(60), "a refused connection is no time-out");
}

/// If a read names more replicas than the write did, only the write's replicas count: `ack` of
/// them, or all if they are fewer, must hold the record.
#[test]
fn a_read_from_more_replicas_than_the_write_counts_those_of_the_write() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..20 {
        assert_eq!(client.put(&key(number), b"v").status, 201);
    }
    wait_until("all copies", || {
        (0..4).map(|node| cluster.local(node).len()).sum::<usize>() == 20 * 3
    });
    cluster.kill(3);
    let mut refusals = 0;
    for number in 0..20 {
        let got = client.get(&format!("{}&ack=3&from=4", key(number)));
        if got.status == 200 {
            continue;
        }
        assert_eq!((got.status, votes(&got)), (504, (2, 3, 3)));
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        let why = "the record found belongs to 3 replicas, of which 3 must hold it";
        assert!(detail.starts_with(why), "{detail}");
        refusals += 1;
    }
    assert!((1..20).contains(&refusals), "n3 has some of the keys: {refusals}");
}

#[test]
fn a_node_is_ready_while_another_is_down() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.wait_until_settled();
    cluster.kill(1);
    let url = format!("http://{}", cluster.address(0));
    assert_eq!(run(&["status", "--url", &url]).status.code(), Some(1), "n1 is down");
    let ready = run(&["status", "--ready", "--url", &url]);
    assert_eq!((ready.status.code(), ready.stdout), (Some(0), b"ready\n".to_vec()));
    let ready = run(&["status", "--ready", "--json", "--url", &url]);
    assert_eq!(ready.stdout, b"{\"ready\":true,\"state\":\"ready\"}\n");
    let gone = format!("http://{}", cluster.address(1));
    assert_eq!(run(&["status", "--ready", "--url", &gone]).status.code(), Some(2));
}

#[test]
fn a_node_that_comes_back_serves_at_once_and_gets_what_it_missed() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..100 {
        assert_eq!(client.put(&key(number), b"old").status, 201);
    }
    cluster.kill(1);
    for number in 0..100 {
        assert_eq!(client.put(&key(number), b"new").status, 201);
    }
    assert_eq!(client.delete(&key(0)).status, 202);
    cluster.up(1);
    let all = client.put(&format!("{}&ack=3&from=3", key(100)), b"new");
    assert_eq!(all.status, 201, "never refused because it was down before");
    let mut back = cluster.client(1);
    assert_eq!(back.get(&key(50)).body(), b"new");
    assert_eq!(back.get(&key(0)).status, 404);
    let healed =
        |items: &[Vec<u8>]| items.len() == 100 && items.iter().all(|item| item.ends_with(b"\nnew"));
    wait_until("hints", || healed(&cluster.local(1)));
    let waiting = || cluster.status(0)["peers"].as_array().unwrap().iter().any(|p| p["hints"] != 0);
    wait_until("forgetting the hints", || !waiting());
}

/// Returns, for each other node, true if `node` reports it as up.
fn up(cluster: &Cluster, node: usize) -> Vec<bool> {
    let status = cluster.status(node);
    let peers = status["peers"].as_array().unwrap();
    peers.iter().map(|peer| peer["up"].as_bool().unwrap()).collect()
}

#[test]
fn an_idle_peer_is_reported_up_until_it_fails() {
    let mut cluster = Cluster::start(3, &["--loops", "3"]);
    for node in 0..3 {
        wait_until("being connected to both peers", || up(&cluster, node) == [true, true]);
    }
    let lines = |node: usize| {
        let metrics = String::from_utf8(cluster.client(node).get("/metrics").body()).unwrap();
        let lines = metrics.lines().filter(|line| line.starts_with("kvorum_peer_connected_loops{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(lines(0).len() == 2 && !lines(0).contains(&"0".to_owned()), "{:?}", lines(0));
    cluster.kill(2);
    wait_until("seeing that it is gone", || up(&cluster, 0) == [true, false]);
    cluster.up(2);
    wait_until("seeing it again", || up(&cluster, 0) == [true, true]);
    wait_until("its seeing them", || up(&cluster, 2) == [true, true]);
    cluster.signal(1, Signal::STOP);
    wait_until("seeing that it hangs", || up(&cluster, 0) == [false, true]);
    cluster.signal(1, Signal::CONT);
    wait_until("seeing that it goes on", || up(&cluster, 0) == [true, true]);
}

#[test]
fn a_wiped_disk_is_noticed_and_streamed_back() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..200 {
        let put = client.put(&format!("{}&ack=3&from=3", key(number)), b"v");
        assert_eq!(put.status, 201);
    }
    cluster.kill(2);
    cluster.wipe(2);
    cluster.up(2);
    let mut wiped = cluster.client(2);
    for number in 0..200 {
        let got = wiped.get(&format!("{}&ack=1&from=3", key(number)));
        assert_eq!((got.status, got.body()), (200, b"v".to_vec()), "its absences don't count");
    }
    cluster.wait_until_settled();
    assert_eq!(cluster.local(2).len(), 200);
}

#[test]
fn a_range_goes_on_when_a_node_dies_in_the_middle() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    let value = vec![b'v'; 100_000];
    for number in 0..150 {
        assert_eq!(client.put(&key(number), &value).status, 201);
    }
    let mut reader = cluster.client(0);
    reader.send("GET /v0/entities?start=key HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(reader.read_head().unwrap().status, 200);
    let mut items = vec![reader.read_chunk().unwrap().unwrap()];
    cluster.kill(1);
    while let Some(item) = reader.read_chunk().unwrap() {
        items.push(item);
    }
    assert_eq!(items.len(), 150);
    assert!(items.is_sorted());
    let mut reader = cluster.client(0);
    reader.send("GET /v0/entities?start=key HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(reader.read_head().unwrap().status, 200);
    assert!(reader.read_chunk().unwrap().is_some());
    cluster.kill(2);
    let broken = loop {
        match reader.read_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broken, "one of three can't tell a range that two must agree on");
}

#[test]
fn large_values_go_through_any_node() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    for (number, len) in [30_000, 40_000, 200_000, 1 << 20].into_iter().enumerate() {
        let value: Vec<u8> = (0..len).map(|at| (at * 31 + number) as u8).collect();
        let target = format!("{}&ack=3&from=3", key(number));
        assert_eq!(cluster.client(number % 3).put(&target, &value).status, 201, "{len} bytes");
        for node in 0..3 {
            let got = cluster.client(node).get(&format!("{}&ack=3&from=3", key(number)));
            assert_eq!(got.status, 200, "{len} bytes");
            assert!(got.body() == value, "{len} bytes came back changed");
        }
    }
}

/// A range returns all writes whose quorum intersects its own, whichever node receives the request.
/// A range does not repair, so a later range may miss other writes that it returned.
#[test]
fn ranges_see_what_overlapping_quorums_acknowledged_and_repair_nothing() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let range = |client: &mut Client, votes: &str| {
        let range = client.get(&format!("/v0/entities?start=key{votes}"));
        assert_eq!(range.status, 200);
        range.body()
    };
    for step in 0..60_u32 {
        let value = format!("{step}");
        let put =
            clients[step as usize % 3].put(&format!("{}&ack=2&from=3", key(0)), value.as_bytes());
        assert_eq!(put.status, 201);
        let seen = range(&mut clients[(step as usize + 1) % 3], "&ack=2&from=3");
        assert_eq!(seen, format!("key0000\n{value}").as_bytes(), "all of 2 of 3 overlap");
    }
    // The only replica of this write acknowledges it. Two of three replicas need not include that
    // replica.
    assert_eq!(clients[0].put(&format!("{}&ack=3&from=3", key(0)), b"old").status, 201);
    assert_eq!(clients[0].put(&format!("{}&ack=1&from=1", key(0)), b"new").status, 201);
    let seen: Vec<_> = clients.iter_mut().map(|client| range(client, "&ack=2&from=3")).collect();
    // Each node asks itself and the next node, so two of the three nodes ask the only replica with
    // the write.
    assert_eq!(seen.iter().filter(|items| *items == b"key0000\nnew").count(), 2, "{seen:?}");
    assert_eq!(seen.iter().filter(|items| *items == b"key0000\nold").count(), 1, "{seen:?}");
    let held = (0..3).filter(|node| cluster.local(*node)[0] == b"key0000\nnew").count();
    assert_eq!(held, 1, "a range repairs nothing");
    assert_eq!(range(&mut clients[1], "&ack=3&from=3"), b"key0000\nnew", "1 + 3 > 3");
}
