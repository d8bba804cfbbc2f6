//! Data directories of earlier releases, which this release must open. `tests/fixtures/VERSION/`
//! has the directories of a single node (`lone`) and of a cluster (`n0` to `n2`), with values,
//! counters, deleted and expired keys, times to live, ETags, quotas and tokens. Half of the data is
//! in tables, and the other half in the log of killed nodes.
//!
//! Each release adds its `tests/fixtures/VERSION/`, with data directories that this command makes
//! it write:
//!
//! ```text
//! KVORUM_WRITE_FIXTURES=1 cargo test --test node releases
//! ```
//!
//! The log is stored without the zeros at its end; `expected.json` has the original lengths.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::process::{Node, kvorum, kvorum_at, wait_until};
use crate::tokens::{ADMIN, Files, bearer, memberships};
use kit::raw::{Client, Response};

/// The time at which fixtures are written, in seconds since 1970: 2026-01-01. A machine reads the
/// fixtures if its clock is not behind this time.
const WRITTEN: u64 = 1_767_225_600;

/// The longest time to live, in days: keys with it expire at the end of 2035.
const FAR_DAYS: u64 = 3650;

/// Number of written values, and number of overwritten values among them.
const VALUES: usize = 15;
const OVERWRITTEN: usize = 5;

/// Number of deleted keys.
const DELETED: usize = 3;

/// Number of existing keys of all kinds: values, an empty value, a key that is not text, a counter,
/// two keys with a time to live, a conditional write, and the keys of the full prefix.
const KEYS: usize = VALUES + 6 + FULL;

/// Number of values below the prefix `full/`, whose quota they use up, and the value of each.
const FULL: usize = 4;
const FULL_VALUE: [u8; 1024] = [b'q'; 1024];

/// Facts that only the release that wrote a fixture can provide.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Expected {
    /// The answers of the single node and of the cluster.
    of: BTreeMap<String, Told>,
    /// The length of each file of each directory.
    lengths: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Answers to the clients of the writing release on which later requests depend.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    /// The ETag of the key `conditional`.
    etag: String,
    /// The text of the token that may read the values.
    reader: String,
    /// The text of the revoked token.
    revoked: String,
}

/// A client of a single node or of a cluster.
struct User<'a> {
    at: SocketAddr,
    token: &'a str,
    /// Query parameters that require all replicas to answer.
    all: &'static str,
}

impl User<'_> {
    fn ask(&self, method: &str, target: &str, header: &str, body: &[u8]) -> Response {
        let mut client = Client::connect(self.at);
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{}{header}Content-Length: {}\r\n\r\n",
            bearer(self.token),
            body.len()
        ));
        client.send(body);
        client.response()
    }

    /// Sends a write, which must succeed; returns the answer.
    fn write(&self, method: &str, query: &str, header: &str, body: &[u8]) -> Response {
        let answer = self.ask(method, &format!("/v0/entity?id={query}"), header, body);
        let said = String::from_utf8_lossy(&answer.body()).into_owned();
        assert!(matches!(answer.status, 200..=202), "{method} {query}: {said}");
        answer
    }

    fn put(&self, query: &str, body: &[u8]) {
        self.write("PUT", &format!("{query}{}", self.all), "", body);
    }

    fn read(&self, key: &str) -> Option<Vec<u8>> {
        let answer = self.ask("GET", &format!("/v0/entity?id={key}{}", self.all), "", b"");
        match answer.status {
            200 => Some(answer.body()),
            404 => None,
            other => panic!("{key}: {other}"),
        }
    }

    fn quota_states(&self) -> Vec<(String, u64, String)> {
        let list = self.ask("GET", "/admin/quotas", "", b"").body();
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let quota = |quota: &serde_json::Value| {
            let text = |name: &str| quota[name].as_str().unwrap_or_default().to_owned();
            (text("prefix"), quota["hard_bytes"].as_u64().unwrap_or(0), text("state"))
        };
        list["quotas"].as_array().unwrap().iter().map(quota).collect()
    }
}

/// Writes the half of the data that is in tables.
fn write_first(user: &User<'_>, files: &Files) -> Told {
    (0..VALUES).for_each(|n| user.put(&format!("value/{n:02}"), b"first"));
    (0..DELETED).for_each(|n| user.put(&format!("deleted/{n}"), b"to be deleted"));
    user.put("empty", b"");
    user.put("%00%FF", b"a key of two bytes");
    user.put(&format!("far/0&ttl={FAR_DAYS}d"), b"of long life");
    user.put("short&ttl=1s", b"of short life");
    user.write("POST", "counter&add=40", "", b"");
    user.write("PUT", "conditional", "If-None-Match: *\r\n", b"one");
    for (prefix, hard) in [("full%2F", FULL * FULL_VALUE.len()), ("wide%2F", 1 << 30)] {
        let quota = format!("/admin/quotas?prefix={prefix}&hard={hard}");
        assert_eq!(user.ask("POST", &quota, "", b"").status, 200);
    }
    (0..FULL).for_each(|n| user.put(&format!("full/{n}"), &FULL_VALUE));
    let reader = ["--methods", "read", "--prefix", "value/"];
    let reader = files.create(user.at, "reader", &reader);
    let revoked = files.create(user.at, "revoked", &[]);
    assert_eq!(user.ask("POST", "/admin/tokens/revoke?id=revoked", "", b"").status, 200);
    wait_until("it has expired", || user.read("short").is_none());
    Told { etag: String::new(), reader, revoked }
}

/// Writes the half of the data that is in the log.
fn write_second(user: &User<'_>, told: &mut Told) {
    (0..OVERWRITTEN).for_each(|n| user.put(&format!("value/{n:02}"), b"second"));
    for n in 0..DELETED {
        user.write("DELETE", &format!("deleted/{n}{}", user.all), "", b"");
    }
    user.put(&format!("far/1&ttl={FAR_DAYS}d"), b"of long life, in the log");
    user.write("POST", "counter&add=2", "", b"");
    let answer = user.ask("GET", "/v0/entity?id=conditional", "", b"");
    let condition = format!("If-Match: {}\r\n", answer.header("etag").unwrap());
    let written = user.write("PUT", "conditional", &condition, b"two");
    written.header("etag").unwrap().clone_into(&mut told.etag);
}

/// Asserts that all written data exists, and no other data.
fn check(user: &User<'_>, told: &Told) {
    for n in 0..VALUES {
        let value: &[u8] = if n < OVERWRITTEN { b"second" } else { b"first" };
        assert_eq!(user.read(&format!("value/{n:02}")).as_deref(), Some(value), "value/{n:02}");
    }
    (0..DELETED).for_each(|n| assert_eq!(user.read(&format!("deleted/{n}")), None));
    assert_eq!(user.read("empty").as_deref(), Some(&b""[..]));
    assert_eq!(user.read("%00%FF").as_deref(), Some(&b"a key of two bytes"[..]));
    assert_eq!(user.read("counter").as_deref(), Some(&b"42"[..]));
    assert_eq!(user.read("short"), None);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let live = if now < WRITTEN + FAR_DAYS * 86_400 { 2 } else { 0 };
    let far = [user.read("far/0"), user.read("far/1")];
    assert_eq!(far.iter().flatten().count(), live, "they expire at the end of 2035");
    let conditional = user.ask("GET", "/v0/entity?id=conditional", "", b"");
    assert_eq!((conditional.status, conditional.body()), (200, b"two".to_vec()));
    assert_eq!(conditional.header("etag"), Some(told.etag.as_str()));
    let all = user.ask("GET", "/v0/entities?start=%00", "", b"").chunks;
    assert_eq!(all.len(), KEYS - 2 + live, "{all:?}");

    wait_until("the quotas are counted", || user.quota_states().iter().all(|it| it.2 != "unknown"));
    let quotas = [("full/", (FULL * FULL_VALUE.len()) as u64, "full"), ("wide/", 1 << 30, "below")];
    let quotas = quotas.map(|(prefix, hard, state)| (prefix.to_owned(), hard, state.to_owned()));
    assert_eq!(user.quota_states(), quotas);
    assert_eq!(user.ask("PUT", "/v0/entity?id=full/more", "", b"v").status, 507);

    let as_token = |token: &str, method: &str, key: &str| {
        let user = User { token, ..*user };
        user.ask(method, &format!("/v0/entity?id={key}"), "", b"").status
    };
    assert_eq!(as_token(&told.reader, "GET", "value/00"), 200);
    assert_eq!(as_token(&told.reader, "PUT", "value/00"), 403);
    assert_eq!(as_token(&told.reader, "GET", "counter"), 403);
    assert_eq!(as_token(&told.revoked, "GET", "value/00"), 401);
}

/// Asserts that the store of an earlier release accepts writes of this release.
fn check_that_it_goes_on(user: &User<'_>) {
    assert_eq!(user.write("POST", "counter&add=-2", "", b"").body(), b"40");
    assert_eq!(user.write("POST", "counter&add=2", "", b"").body(), b"42");
    user.put("deleted/0", b"again");
    assert_eq!(user.read("deleted/0").as_deref(), Some(&b"again"[..]));
    user.write("DELETE", &format!("deleted/0{}", user.all), "", b"");
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Copies a data directory into the fixture, without the zeros at the ends of its files; returns
/// the original lengths of the files.
fn save(data: &Path, fixture: &Path) -> BTreeMap<String, u64> {
    fs::create_dir_all(fixture).unwrap();
    let mut lengths = BTreeMap::new();
    for entry in fs::read_dir(data).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let mut bytes = fs::read(data.join(&name)).unwrap();
        lengths.insert(name.clone(), bytes.len() as u64);
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end);
        fs::write(fixture.join(name), bytes).unwrap();
    }
    lengths
}

/// Creates a data directory from a fixture, as the earlier release left it.
fn restore(fixture: &Path, lengths: &BTreeMap<String, u64>, data: &Path) {
    fs::create_dir_all(data).unwrap();
    for (name, length) in lengths {
        fs::copy(fixture.join(name), data.join(name)).unwrap();
        File::options().write(true).open(data.join(name)).unwrap().set_len(*length).unwrap();
    }
}

/// Returns the settings of the single node.
fn lone_args(files: &Files) -> Vec<String> {
    let mut args = files.args();
    args.truncate(3);
    args
}

fn strings(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn lone_user(node: &Node) -> User<'static> {
    User { at: node.address, token: ADMIN, all: "" }
}

fn cluster_user(cluster: &Cluster, node: usize) -> User<'static> {
    User { at: cluster.address(node), token: ADMIN, all: "&ack=3&from=3" }
}

/// Waits until each node reports that all nodes are members.
fn settle(cluster: &Cluster, files: &Files) {
    for node in 0..3 {
        let at = cluster.address(node);
        wait_until("all are members", || memberships(files, at, "admin") == ["member"; 3]);
    }
}

#[test]
fn directories_of_this_release_are_written_on_request() {
    if std::env::var_os("KVORUM_WRITE_FIXTURES").is_none() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let back = format!("-{}", (now - Duration::from_secs(WRITTEN)).as_secs());
    let command = || kvorum_at(&back).expect("libfaketime writes fixtures");
    let fixture = fixtures().join(env!("CARGO_PKG_VERSION"));
    let _ = fs::remove_dir_all(&fixture);
    let mut expected = Expected::default();
    let files = Files::new();

    let args = lone_args(&files);
    let node = Node::start_with(command(), tempfile::tempdir().unwrap(), &strings(&args));
    let mut told = write_first(&lone_user(&node), &files);
    let node = Node::start_with(command(), node.stop(), &strings(&args));
    write_second(&lone_user(&node), &mut told);
    check(&lone_user(&node), &told);
    let data = node.kill();
    let lengths = save(&data.path().join("data"), &fixture.join("lone"));
    expected.lengths.insert("lone".to_owned(), lengths);
    expected.of.insert("lone".to_owned(), told);

    let mut cluster = Cluster::create_stopped(3, &strings(&files.args()));
    (0..3).for_each(|node| cluster.start_by(node, command()));
    settle(&cluster, &files);
    let mut told = write_first(&cluster_user(&cluster, 0), &files);
    (0..3).for_each(|node| cluster.stop(node));
    (0..3).for_each(|node| cluster.start_by(node, command()));
    settle(&cluster, &files);
    write_second(&cluster_user(&cluster, 1), &mut told);
    check(&cluster_user(&cluster, 2), &told);
    (0..3).for_each(|node| cluster.kill(node));
    for node in 0..3 {
        let name = format!("n{node}");
        let lengths = save(&cluster.data(node), &fixture.join(&name));
        expected.lengths.insert(name, lengths);
    }
    expected.of.insert("cluster".to_owned(), told);
    let expected = serde_json::to_string_pretty(&expected).unwrap() + "\n";
    fs::write(fixture.join("expected.json"), expected).unwrap();
}

/// Returns the directory and the expected answers of each release's fixture.
fn each_release() -> Vec<(PathBuf, Expected)> {
    let releases = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let expected = fs::read(path.join("expected.json")).unwrap();
        (path, serde_json::from_slice(&expected).unwrap())
    };
    let releases: Vec<(PathBuf, Expected)> = releases.map(read).collect();
    assert!(releases.iter().any(|(path, _)| path.ends_with("0.1.0")), "the first release");
    releases
}

#[test]
fn a_lone_node_opens_the_directory_of_each_earlier_release() {
    for (fixture, expected) in each_release() {
        let data = tempfile::tempdir().unwrap();
        restore(&fixture.join("lone"), &expected.lengths["lone"], &data.path().join("data"));
        let files = Files::new();
        let args = lone_args(&files);
        let node = Node::start_with(kvorum(), data, &strings(&args));
        check(&lone_user(&node), &expected.of["lone"]);
        check_that_it_goes_on(&lone_user(&node));
        let node = Node::start_with(kvorum(), node.stop(), &strings(&args));
        check(&lone_user(&node), &expected.of["lone"]);
    }
}

#[test]
fn a_cluster_opens_the_directories_of_each_earlier_release() {
    for (fixture, expected) in each_release() {
        let files = Files::new();
        let mut cluster = Cluster::create_stopped(3, &strings(&files.args()));
        for node in 0..3 {
            let name = format!("n{node}");
            restore(&fixture.join(&name), &expected.lengths[&name], &cluster.data(node));
        }
        (0..3).for_each(|node| cluster.up(node));
        settle(&cluster, &files);
        let told = &expected.of["cluster"];
        (0..3).for_each(|node| check(&cluster_user(&cluster, node), told));
        check_that_it_goes_on(&cluster_user(&cluster, 0));
        (0..3).for_each(|node| cluster.stop(node));
        (0..3).for_each(|node| cluster.up(node));
        settle(&cluster, &files);
        (0..3).for_each(|node| check(&cluster_user(&cluster, node), told));
    }
}
