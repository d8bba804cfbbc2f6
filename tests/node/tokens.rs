//! Access control: every route with every kind of token, on a single node; and tokens in a cluster,
//! which all nodes know, whichever node is down. With `--require-auth`, requests from loopback need
//! tokens too.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};
use std::{fs, thread};

use kit::raw::{Client, Response};
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, key};
use crate::listing::LINES;
use crate::moves::{cluster_command, layout, plan_change, text};
use crate::process::{Node, TIMEOUT, kvorum, kvorum_at, run, wait_until};

/// The token in the file of `--admin-token-file`.
pub(crate) const ADMIN: &str = "an admin token of this test";

/// A well-formed token that was never created.
const WRONG: &str = "kvorum_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A directory with the files for flags of nodes and commands.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("admin", ADMIN);
        files.write("secret", "a secret of this test");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn args(&self) -> Vec<String> {
        let path = |name| self.path(name).to_str().unwrap().to_owned();
        let files = [
            "--admin-token-file".to_owned(),
            path("admin"),
            "--cluster-secret-file".to_owned(),
            path("secret"),
        ];
        [&["--require-auth".to_owned()][..], &files].concat()
    }

    /// Runs a command with the token in the file `token`.
    pub(crate) fn run(&self, at: SocketAddr, token: &str, args: &[&str]) -> Output {
        let (url, file) = (format!("http://{at}"), self.path(token));
        run(&[args, &["--url", &url, "--token-file", file.to_str().unwrap()]].concat())
    }

    /// Creates a token, and stores it in a file with the token's name; returns the token.
    pub(crate) fn create(&self, at: SocketAddr, name: &str, args: &[&str]) -> String {
        let made = self.run(at, "admin", &[&["token", "create", "--name", name], args].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
        let token = text(&made.stdout).trim_end().to_owned();
        assert!(token.starts_with("kvorum_") && token.len() == 50, "{token}");
        self.write(name, &token);
        token
    }
}

/// Starts a single node that requires tokens, and has no cluster secret.
pub(crate) fn single_node(files: &Files) -> Node {
    let admin = files.path("admin");
    Node::start(&["--require-auth", "--admin-token-file", admin.to_str().unwrap()])
}

/// Sends a request with the header lines `header` on a new connection; returns the head of the
/// answer.
fn head_of(at: SocketAddr, method: &str, target: &str, header: &str) -> Response {
    let mut client = Client::connect(at);
    client.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{header}\r\n"
    ));
    client.head_response()
}

/// One or more spaces separate the scheme from the token, and the case of the scheme does not
/// matter (RFC 9110).
#[test]
fn spaces_before_a_token_are_ignored() {
    let files = Files::new();
    let node = single_node(&files);
    let status = |header: &str| {
        let header = format!("Authorization: {header}\r\n");
        head_of(node.address, "GET", "/v0/entity?id=k", &header).status
    };
    for header in ["Bearer ", "Bearer  ", "bearer    ", "BEARER "] {
        assert_eq!(status(&format!("{header}{ADMIN}")), 404, "{header:?}");
    }
    for header in ["Bearer", "Bearer\t", "Basic ", "", "Bearer x"] {
        assert_eq!(status(&format!("{header}{ADMIN}")), 401, "{header:?}");
    }
    assert_eq!((status("Bearer"), status("Bearer   ")), (401, 401));
}

pub(crate) fn bearer(token: &str) -> String {
    if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") }
}

pub(crate) fn status(at: SocketAddr, method: &str, target: &str, token: &str) -> u16 {
    head_of(at, method, target, &bearer(token)).status
}

/// Returns every method and route of the API description. A test in `src/http/openapi.rs` compares
/// the description with the routes.
pub(crate) fn routes() -> Vec<(String, String)> {
    let text = include_str!("../../docs/reference/openapi.yaml");
    let (mut path, mut routes) = (String::new(), Vec::new());
    let paths = text.lines().skip_while(|line| *line != "paths:").skip(1);
    for line in paths.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        match line.strip_prefix("  ").and_then(|line| line.strip_suffix(':')) {
            Some(of) if of.starts_with('/') => path = of.to_owned(),
            Some(of) if ["  get", "  head", "  put", "  post", "  delete"].contains(&of) => {
                routes.push((of.trim().to_uppercase(), path.clone()));
            }
            _ => {}
        }
    }
    assert!(routes.len() > 30, "{routes:?}");
    routes
}

/// Returns a route's scope, and a target for requests that change nothing and complete at once.
pub(crate) fn scope(path: &str) -> (&'static str, String) {
    let (scope, query) = match path {
        "/" | "/healthz" | "/readyz" | "/ui" | "/v0/peer" => ("public", ""),
        "/v0/entity" => ("data", "id=users/a&ack=0"),
        "/v0/entities" => ("data", "start=users/&end=users0&ack=0"),
        "/ui/key" => ("data", "id=users/a&from=0"),
        "/metrics" | "/v0/status" | "/v0/cluster" => ("metrics", ""),
        "/ui/events" => ("metrics", "local=maybe"),
        "/admin/profile" => ("admin", "seconds=0"),
        path if path.starts_with("/admin/") => ("admin", "nothing=such"),
        path => panic!("{path} has no scope here"),
    };
    (scope, if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
}

/// Row 39 of docs/results/reliability.md: requests to every route without a token, and with tokens
/// that are wrong, expired, revoked or of another scope.
#[test]
fn every_route_wants_a_token_that_is_good_for_it() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    let make = |name: &str, args: &[&str]| files.create(at, name, args);
    let expired = make("expired", &["--expires", "1s", "--for", "data,metrics,admin"]);
    let revoked = make("revoked", &["--for", "data,metrics,admin"]);
    assert!(files.run(at, "admin", &["token", "revoke", "revoked"]).status.success());
    let replayed = format!("{revoked}, Bearer {ADMIN}");
    let outside = make("outside", &["--prefix", "users/b"]);
    let good: [(&str, String, &[&str]); 7] = [
        ("data", make("data", &[]), &["GET", "HEAD", "PUT", "POST", "DELETE"]),
        ("data", make("read", &["--methods", "read"]), &["GET", "HEAD"]),
        ("data", make("put", &["--methods", "PUT"]), &["PUT"]),
        (
            "data",
            make("inside", &["--prefix", "users/"]),
            &["GET", "HEAD", "PUT", "POST", "DELETE"],
        ),
        ("metrics", make("metrics", &["--for", "metrics"]), &["GET", "HEAD"]),
        ("admin", make("admin-all", &["--for", "admin"]), &["GET", "POST"]),
        ("admin", make("admin-read", &["--for", "admin", "--methods", "GET"]), &["GET"]),
    ];
    wait_until("it expires", || status(at, "GET", "/v0/status", &expired) == 401);
    for (method, target) in [
        ("GET", "/v0/entity?id=users/a"),
        ("HEAD", "/v0/entity?id=users/a"),
        ("PUT", "/v0/entity?id=users/a"),
        ("DELETE", "/v0/entity?id=users/a"),
        ("POST", "/v0/entity?id=users/a&add=1"),
        ("GET", "/v0/entities?start=users/&end=users0"),
        ("GET", "/ui/key?id=users/a"),
        ("HEAD", "/ui/key?id=users/a"),
    ] {
        assert_eq!(status(at, method, target, &outside), 403, "{method} {target}");
    }
    for (method, path) in routes() {
        let (scope, target) = scope(&path);
        let is_public = scope == "public";
        for token in ["", WRONG, &expired, &revoked, &replayed, &ADMIN[1..]] {
            let refused = head_of(at, &method, &target, &bearer(token));
            assert_eq!(refused.status == 401, !is_public, "{method} {target} {token}");
            assert_eq!(refused.header("www-authenticate").is_some(), !is_public);
        }
        for (kind, token, methods) in &good {
            let expected = !is_public && (*kind != scope || !methods.contains(&method.as_str()));
            let got = status(at, &method, &target, token);
            assert_eq!(got == 403, expected, "{method} {target} for {kind} {methods:?}: {got}");
            assert_ne!(got, 401, "{method} {target}");
        }
        let got = status(at, &method, &target, ADMIN);
        assert!(![401, 403].contains(&got), "{method} {target}: {got}");
        for name in ["token", "access_token", "Authorization"] {
            let bare = target.split('?').next().unwrap();
            let refused = head_of(at, &method, &format!("{bare}?{name}={ADMIN}"), "").status;
            let is_peers = path == "/v0/peer";
            assert!(refused == 400 || is_peers, "{method} {bare} with {name} in its query");
        }
    }
    let (_, log) = {
        node.signal(rustix::process::Signal::TERM);
        node.wait()
    };
    for secret in [ADMIN, &expired, &revoked, &good[0].1] {
        assert!(!log.contains(secret), "the log has a token: {log}");
    }
    for said in ["who=\"admin token\"", "POST /admin/tokens?name=revoked", "revoke?id=revoked"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

/// Returns the header lines of a request for the format `form` of a range, with a token.
fn accept(form: &str, token: &str) -> String {
    format!("{}Accept: {form}\r\n", bearer(token))
}

/// In formats of a range that need no start, an omitted bound must not extend the range beyond the
/// token's prefix.
#[test]
fn ranges_without_a_start_stay_within_the_prefix() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    let token = files.create(at, "users", &["--prefix", "users/"]);
    for form in [LINES, "application/vnd.kvorum.items"] {
        for (query, expected) in [
            ("", 403),
            ("?", 403),
            ("?limit=10", 403),
            ("?local=true", 403),
            ("?end=users0", 403),
            ("?prefix=users", 403),
            ("?prefix=user", 403),
            ("?prefix=x", 403),
            ("?prefix=users0", 403),
            ("?start=users/a", 403),
            ("?start=users/a&end=users1", 403),
            ("?prefix=users&start=users/", 403),
            ("?prefix=%75sers%2F", 200),
            ("?prefix=users/&limit=1", 200),
            ("?prefix=users/a&values=false", 200),
            ("?prefix=users/&start=a&end=z", 200),
            ("?start=users/&end=users0", 200),
            ("?prefix=users/&prefix=x", 400),
            ("?prefix=users/&after=x", 400),
        ] {
            let target = format!("/v0/entities{query}");
            let answer = head_of(at, "GET", &target, &accept(form, &token));
            assert_eq!(answer.status, expected, "{form} {query}");
        }
    }
}

/// A cursor grants no access, whichever token was used to get it.
#[test]
fn a_cursor_leads_to_no_key_outside_the_prefix() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    let token = files.create(at, "users", &["--prefix", "users/"]);
    for key in ["a", "users/b", "users/c", "z"] {
        assert!(files.run(at, "admin", &["put", key, "v"]).status.success());
    }
    let cursor_of = |query: &str| {
        let mut client = Client::connect(at);
        let header = accept(LINES, ADMIN);
        client
            .send(format!("GET /v0/entities?{query} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"));
        let body = text(&client.response().body());
        body.rsplit_once("{\"next\":\"").unwrap().1.trim_end().trim_end_matches("\"}").to_owned()
    };
    let [all, own] = [cursor_of("limit=1"), cursor_of("prefix=users/&limit=1")];
    for (query, cursor, expected) in [
        ("", &all, 403),
        ("prefix=users/&", &all, 400),
        ("end=users0&", &all, 400),
        ("", &own, 400),
        ("prefix=users/&", &own, 200),
    ] {
        let target = format!("/v0/entities?{query}after={cursor}");
        let answer = head_of(at, "GET", &target, &accept(LINES, &token));
        assert_eq!(answer.status, expected, "{target}");
    }
    let listed = files.run(at, "users", &["scan", "--prefix", "users/", "--limit", "9"]);
    assert_eq!(text(&listed.stdout), "users/b\tv\nusers/c\tv\n");
}

#[test]
fn keys_and_ranges_outside_the_prefix_are_refused_and_named() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    let token = files.create(at, "users", &["--prefix", "users/"]);
    for (target, expected) in [
        ("/v0/entity?id=users/a", 404),
        ("/v0/entity?id=%75sers%2Fa", 404),
        ("/v0/entity?id=users", 403),
        ("/v0/entity?id=Users/a", 403),
        ("/v0/entity?id=x&id=users/a", 400),
        // A request that can't be parsed is refused as such, whatever its key.
        ("/v0/entity?id=other&only_this_route=1", 400),
        ("/v0/entity?only_this_route&ack=1&id=other", 400),
        ("/v0/entity?id=users/a&only_this_route=1", 400),
        ("/ui/key?id=other&only_this_route=1", 400),
        ("/v0/entity?id=other&ack=1", 403),
        ("/v0/entities?start=users/&end=users0&only_this_route=1", 400),
        ("/v0/entity?ack=1", 400),
        ("/v0/entities?start=users/&end=users0", 200),
        ("/v0/entities?start=users/a&end=users/b&local=true", 200),
        ("/v0/entities?start=users/", 403),
        ("/v0/entities?start=users/&end=users1", 403),
        ("/v0/entities?start=a&end=users0", 403),
        ("/ui/key?id=users/a", 200),
        ("/ui/key?id=other", 403),
    ] {
        assert_eq!(status(at, "GET", target, &token), expected, "{target}");
    }
    let refused = files.run(at, "users", &["scan"]);
    let said = text(&refused.stderr);
    assert!(said.contains("from start=users/ to end=users0 at most"), "{said}");
    let mut client = Client::connect(at);
    client.send(format!(
        "PUT /v0/entity?id=other HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: 1\r\n\r\nv",
        bearer(&token)
    ));
    let json = client.response().json();
    assert_eq!((&json["type"], &json["outcome"]), (&"forbidden".into(), &"none".into()));
    assert!(files.run(at, "users", &["put", "users/a", "v"]).status.success());
    assert_eq!(files.run(at, "users", &["get", "users/a"]).stdout, b"v");
}

#[test]
fn a_rate_is_kept_and_the_client_told_when_to_come_again() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    let token = files.create(at, "slow", &["--rate", "5/s"]);
    let ask = || head_of(at, "GET", "/v0/entity?id=a", &bearer(&token));
    let answers: Vec<Response> = (0..30).map(|_| ask()).collect();
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(refused.header("retry-after"), Some("1"));
    wait_until("it is answered again", || ask().status == 404);
    let thin = files.create(at, "thin", &["--bytes", "1KiB/s"]);
    let put = |value: &str| files.run(at, "thin", &["put", "k", value]);
    assert!(put(&"v".repeat(2500)).status.success(), "the first one can't be known before");
    let began = Instant::now();
    let refused = put("v");
    assert!(text(&refused.stderr).contains("429"), "{}", text(&refused.stderr));
    wait_until("its bytes are paid", || put("v").status.success());
    assert!(began.elapsed() > Duration::from_millis(300), "2,500 bytes at 1,024 a second");
    let other = files.create(at, "other", &[]);
    assert_eq!(status(at, "GET", "/v0/entity?id=a", &other), 404, "each has its own");
    assert!(files.run(at, "admin", &["put", "long", &"v".repeat(100_000)]).status.success());
    for _ in 0..3 {
        let head = status(at, "HEAD", "/v0/entity?id=long", &thin);
        assert_eq!(head, 200, "what is not sent is not counted");
    }
}

#[test]
fn invalid_arguments_of_token_creation_are_refused() {
    let files = Files::new();
    let node = single_node(&files);
    let at = node.address;
    files.create(at, "taken", &[]);
    for (args, said) in [
        (&["--name", "taken"][..], "already: revoke it first"),
        (&["--name", "a b"], "visible characters"),
        (&["--name", "a\u{202e}b"], "visible characters"),
        (&["--name", "a\u{200b}"], "visible characters"),
        (&["--name", "x", "--methods", "writes"], "methods: \"writes\" is unknown"),
        (&["--name", "x", "--for", "all"], "for: \"all\" is unknown"),
        (&["--name", "x", "--for", "admin", "--prefix", "a"], "can't be limited to a prefix"),
        (&["--name", "x", "--expires", "0s"], "out of range"),
        (&["--name", "x", "--rate", "0/s"], "not a valid rate"),
    ] {
        let refused = files.run(at, "admin", &[&["token", "create"], args].concat());
        let stderr = text(&refused.stderr);
        assert!(refused.status.code() == Some(2) && stderr.contains(said), "{args:?}: {stderr}");
    }
    let unknown = files.run(at, "admin", &["token", "revoke", "nobody"]);
    assert!(text(&unknown.stderr).contains("no token of the id or name"));
    let list = files.run(at, "admin", &["token", "list", "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list["tokens"].as_array().map(Vec::len), Some(1), "{list}");
    let id = list["tokens"][0]["id"].as_str().unwrap();
    assert!(files.run(at, "admin", &["token", "revoke", id]).status.success());
}

/// Covers all four cases: the token was refused before the restart or not, and the node was killed
/// or stopped.
#[test]
fn an_expired_token_stays_expired_after_a_restart_with_the_clock_behind() {
    let files = Files::new();
    let admin = files.path("admin");
    let args = ["--require-auth", "--admin-token-file", admin.to_str().unwrap()];
    let start = |time: &str, data: TempDir| {
        kvorum_at(time).map(|command| Node::start_with(command, data, &args))
    };
    let answer = |node: &Node, token: &str| status(node.address, "GET", "/v0/entity?id=k", token);
    for (is_asked, is_killed) in [(true, false), (false, false), (true, true), (false, true)] {
        let Some(node) = start("+0s", tempfile::tempdir().unwrap()) else { return };
        let name = format!("hour-{is_asked}-{is_killed}");
        let token = files.create(node.address, &name, &["--expires", "1h"]);
        assert_eq!(answer(&node, &token), 404);
        let node = start("+7200s", node.stop()).unwrap();
        if is_asked {
            assert_eq!(answer(&node, &token), 401);
        }
        let data = if is_killed { node.kill() } else { node.stop() };
        // The node starts twice with the clock behind the expiry: the second start shows that the
        // first one did not forget the expiry.
        let data = start("-7200s", data).unwrap().stop();
        let node = start("+0s", data).unwrap();
        assert_eq!(answer(&node, &token), 401, "asked: {is_asked}, killed: {is_killed}");
        let listed = files.run(node.address, "admin", &["token", "list"]);
        assert!(text(&listed.stdout).contains("  expired"), "{}", text(&listed.stdout));
        let made = files.create(node.address, "anew", &["--expires", "1h"]);
        assert_eq!(answer(&node, &made), 404, "a new token lives as long as it should");
        let listed = files.run(node.address, "admin", &["token", "list"]);
        assert!(text(&listed.stdout).contains("  expires in 60 minutes"), "{listed:?}");
    }
}

#[test]
fn without_require_auth_loopback_needs_no_token() {
    let node = Node::start(&[]);
    for (target, expected) in [("/v0/entity?id=a", 404), ("/metrics", 200), ("/admin/layout", 200)]
    {
        for token in ["", WRONG] {
            assert_eq!(status(node.address, "GET", target, token), expected, "{target}");
        }
    }
    let made =
        run(&["token", "create", "--name", "a", "--url", &format!("http://{}", node.address)]);
    assert!(made.status.success(), "{}", text(&made.stderr));
}

/// Starts a cluster that requires tokens, and waits until every node reports all nodes as members.
fn cluster(files: &Files) -> Cluster {
    let args = files.args();
    let cluster = Cluster::start(3, &args.iter().map(String::as_str).collect::<Vec<_>>());
    for node in 0..3 {
        let all = || memberships(files, cluster.address(node), "admin") == ["member"; 3];
        wait_until("all are members", all);
    }
    cluster
}

/// Returns the membership states of all nodes, as the node at `at` reports them to a request with
/// this token.
pub(crate) fn memberships(files: &Files, at: SocketAddr, token: &str) -> Vec<Value> {
    let asked = files.run(at, token, &["status", "--json"]);
    let cluster: Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
    let rows = cluster["nodes"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["status"]["membership"].clone()).collect()
}

#[test]
fn all_nodes_know_a_token_soon_and_while_the_council_is_down() {
    let files = Files::new();
    let mut cluster = cluster(&files);
    let at: Vec<SocketAddr> = (0..3).map(|node| cluster.address(node)).collect();
    let token = files.create(at[0], "app", &["--for", "data,metrics"]);
    let knows = |node: usize| status(at[node], "GET", "/v0/status", &token) == 200;
    assert!(knows(0), "the node that made it knows it at once");
    (1..3).for_each(|node| wait_until("it is known", || knows(node)));
    // Nodes send each other requests without a token.
    let seen = files.run(at[1], "app", &["status", "--json"]);
    assert!(seen.status.success(), "{}", text(&seen.stdout));
    let mut client = cluster.client(2);
    client.send(format!("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n{}\r\n", bearer(&token)));
    assert_eq!(client.read_head().unwrap().status, 200);
    let mut told = String::new();
    while !["n0", "n1", "n2"].iter().all(|n| told.contains(&format!("{{\"node\":\"{n}\",\"snap"))) {
        told += &text(&client.read_chunk().unwrap().unwrap());
        assert!(!told.contains("event: lost"), "{told}");
    }
    cluster.kill(0);
    cluster.kill(1);
    assert!(knows(2) && status(at[2], "GET", "/v0/status", WRONG) == 401);
    cluster.kill(2);
    (0..3).for_each(|node| cluster.up(node));
    (0..3).for_each(|node| assert!(knows(node), "it is on the disk of every node"));
    wait_until("it is revoked", || {
        files.run(at[2], "admin", &["token", "revoke", "app"]).status.success()
    });
    assert!(!knows(2));
    (0..2).for_each(|node| wait_until("it is refused", || !knows(node)));
}

#[test]
fn a_revocation_applies_to_open_connections() {
    let files = Files::new();
    let node = single_node(&files);
    let token = files.create(node.address, "app", &[]);
    let mut client = node.client();
    let mut get = || {
        client.send(format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            key(1),
            bearer(&token)
        ));
        client.response().status
    };
    assert_eq!([get(), get()], [404, 404]);
    assert!(files.run(node.address, "admin", &["token", "revoke", "app"]).status.success());
    assert_eq!([get(), get()], [401, 401]);
}

#[test]
fn a_stream_of_the_dashboard_ends_with_its_token() {
    let files = Files::new();
    let node = single_node(&files);
    let token = files.create(node.address, "page", &["--for", "metrics"]);
    let mut client = node.client();
    let bearer = bearer(&token);
    client.send(format!("GET /ui/events HTTP/1.1\r\nHost: localhost\r\n{bearer}\r\n"));
    assert_eq!(client.read_head().unwrap().status, 200);
    assert!(client.read_chunk().unwrap().is_some());
    assert!(files.run(node.address, "admin", &["token", "revoke", "page"]).status.success());
    let told = Instant::now();
    while client.read_chunk().unwrap().is_some() {
        assert!(told.elapsed() < TIMEOUT, "it goes on");
    }
}

#[test]
fn a_range_ends_with_its_token() {
    let files = Files::new();
    let node = single_node(&files);
    let mut client = node.client();
    for number in 0..40 {
        client.send(format!(
            "PUT {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: 1000000\r\n\r\n",
            key(number),
            bearer(ADMIN)
        ));
        client.send(vec![7; 1_000_000]);
        assert_eq!(client.response().status, 201);
    }
    let token = files.create(node.address, "app", &[]);
    let bearer = bearer(&token);
    client.send(format!("GET /v0/entities?start=a HTTP/1.1\r\nHost: localhost\r\n{bearer}\r\n"));
    assert_eq!(client.read_head().unwrap().status, 200);
    assert!(client.read_chunk().unwrap().is_some());
    assert!(files.run(node.address, "admin", &["token", "revoke", "app"]).status.success());
    // Data in transit still arrives. Then the connection is reset, so that the client can't take
    // the data for the whole range.
    let rest = (1..).map(|_| client.read_chunk()).find(|chunk| !matches!(chunk, Ok(Some(_))));
    assert!(rest.unwrap().is_err(), "the range was read to its end");
}

/// Tests the promises of docs/operate/tls-and-tokens.md about tokens and quotas while the majority
/// of the council is down.
#[test]
fn without_a_majority_of_the_council_no_change_is_decided_and_what_there_is_holds() {
    let files = Files::new();
    let mut cluster = cluster(&files);
    let at: Vec<SocketAddr> = (0..3).map(|node| cluster.address(node)).collect();
    let token = files.create(at[2], "app", &["--for", "data,metrics"]);
    let knows = |node: usize| status(at[node], "GET", "/v0/status", &token) == 200;
    (0..3).for_each(|node| wait_until("it is known", || knows(node)));
    cluster.kill(0);
    cluster.kill(1);
    let changes: [&[&str]; 3] = [
        &["token", "create", "--name", "new"],
        &["token", "revoke", "app"],
        &["quota", "set", "a/", "--hard", "1MiB"],
    ];
    thread::scope(|scope| {
        let asked = changes.map(|change| scope.spawn(|| files.run(at[2], "admin", change)));
        let answer = status(at[2], "POST", "/admin/quotas?prefix=b&hard=1", ADMIN);
        assert_eq!(answer, 503);
        for (asked, change) in asked.into_iter().zip(changes) {
            let said = asked.join().unwrap();
            let stderr = text(&said.stderr);
            assert_eq!(said.status.code(), Some(2), "{change:?}: {stderr}");
            assert!(stderr.contains("no majority of the council"), "{change:?}: {stderr}");
        }
    });
    assert!(knows(2), "it was not revoked");
    (0..2).for_each(|node| cluster.up(node));
    wait_until("a majority decides again", || {
        files.run(at[2], "admin", &["token", "create", "--name", "more"]).status.success()
    });
    let revoked = files.run(at[1], "admin", &["token", "revoke", "app"]);
    assert!(revoked.status.success() || !knows(1), "{}", text(&revoked.stderr));
    (0..3).for_each(|node| wait_until("it is refused", || !knows(node)));
}

fn tokens(cluster: &Cluster, node: usize) -> usize {
    let list = cluster.client(node).get("/admin/tokens").body();
    let list: Value = serde_json::from_slice(&list).unwrap();
    list["tokens"].as_array().map_or(0, Vec::len)
}

/// Tokens are created while keys move. Afterwards the change must be able to continue, or to be
/// aborted.
#[test]
fn tokens_are_made_while_members_change() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    cluster.fill(50, b"value");
    let create = |cluster: &Cluster, name: &str| {
        let url = format!("http://{}", cluster.address(1));
        let made = run(&["token", "create", "--name", name, "--url", &url]);
        assert!(made.status.success(), "{}", text(&made.stderr));
    };
    cluster.kill(3);
    let apply = |cluster: &Cluster, change: &[&str], stage: &str| {
        let id = plan_change(cluster, 0, change)["plan"].as_str().unwrap().to_owned();
        assert!(cluster_command(cluster, 0, &["apply", &id]).status.success());
        wait_until("the stage", || layout(cluster, 1)["stage"] == stage);
        id
    };
    apply(&cluster, &["--remove", "n3"], "read old");
    create(&cluster, "one");
    assert_eq!(layout(&cluster, 1)["stage"], "read old");
    wait_until("all know of it", || layout(&cluster, 0)["epoch"] == layout(&cluster, 1)["epoch"]);
    let aborted = cluster_command(&cluster, 0, &["abort", "--wait"]);
    assert!(aborted.status.success(), "{}", text(&aborted.stderr));
    apply(&cluster, &["--weight", "n1=5"], "prepare");
    create(&cluster, "two");
    assert_eq!(layout(&cluster, 1)["stage"], "prepare");
    cluster.up(3);
    (0..4).for_each(|node| {
        wait_until("keys have moved", || layout(&cluster, node)["stage"] == "settled");
        wait_until("it knows both", || tokens(&cluster, node) == 2);
    });
    cluster.has(0..50, b"value");
}

#[test]
fn who_waits_for_a_change_is_told_its_end_although_tokens_are_made() {
    let mut cluster = Cluster::start(4, &[]);
    cluster.wait_until_settled();
    cluster.kill(3);
    let id = plan_change(&cluster, 0, &["--weight", "n1=5"])["plan"].as_str().unwrap().to_owned();
    thread::scope(|scope| {
        let waits = scope.spawn(|| cluster_command(&cluster, 0, &["apply", "--wait", &id]));
        wait_until("the stage", || layout(&cluster, 0)["stage"] == "prepare");
        let url = format!("http://{}", cluster.address(0));
        for name in ["a", "b", "c"] {
            let made = run(&["token", "create", "--name", name, "--url", &url]);
            assert!(made.status.success(), "{}", text(&made.stderr));
        }
        wait_until("all know of it", || {
            layout(&cluster, 0)["epoch"] == layout(&cluster, 1)["epoch"]
        });
        let aborted = cluster_command(&cluster, 1, &["abort", "--wait"]);
        assert!(aborted.status.success(), "{}", text(&aborted.stderr));
        let told = waits.join().unwrap();
        let said = text(&told.stderr);
        assert!(said.contains("the change was aborted"), "{said}{}", text(&told.stdout));
    });
    cluster.up(3);
}

#[test]
fn nodes_that_want_tokens_need_a_secret() {
    let data = tempfile::tempdir().unwrap();
    let mut command = kvorum();
    command.args(["serve", "--require-auth", "--listen", "127.0.0.1:0", "--data"]);
    command.arg(data.path()).args(["--advertise", "http://127.0.0.1:1", "--cluster"]);
    command.arg("http://127.0.0.1:1,http://127.0.0.1:2");
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--cluster-secret-file"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

/// Removes one of three nodes from the cluster; returns the id of the plan.
fn removes(files: &Files, at: SocketAddr, node: &str) -> String {
    let change = ["--remove", node, "--replicas", "2", "--json"];
    let planned = files.run(at, "admin", &[&["cluster", "plan"], &change[..]].concat());
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let plan = plan["plan"].as_str().unwrap().to_owned();
    let applied = files.run(at, "admin", &["cluster", "apply", "--wait", &plan]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    plan
}

/// A removed node does not learn of revocations. So it accepts no tokens except the admin token in
/// its own settings.
#[test]
fn a_removed_node_accepts_its_admin_token_only_and_says_where_to_ask() {
    let files = Files::new();
    let args = files.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(3, &args);
    let (one, gone) = (cluster.address(0), cluster.address(2));
    let answer = |target: &str, token: &str| {
        let mut client = Client::connect(gone);
        let header = bearer(token);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"));
        client.response()
    };
    wait_until("all are members", || memberships(&files, one, "admin") == ["member"; 3]);
    let ops = files.create(one, "ops", &["--for", "data,metrics,admin"]);
    wait_until("it is known", || status(gone, "GET", "/metrics", &ops) == 200);
    let plan = &removes(&files, one, "n2");
    wait_until("it hears of it", || status(gone, "GET", "/readyz", "") == 503);
    assert!(files.run(one, "admin", &["token", "revoke", "ops"]).status.success());
    for is_restarted in [false, true] {
        if is_restarted {
            cluster.stop(2);
            cluster.up(2);
        }
        for target in ["/metrics", "/v0/status", "/v0/cluster", "/admin/layout", "/admin/compact"] {
            assert_eq!(answer(target, ADMIN).status, 200, "{target}");
            let refused = answer(target, &ops);
            let why = refused.json()["detail"].to_string();
            assert_eq!(refused.status, 401, "{target}: {why}");
            assert!(why.contains("this node was removed from the cluster"), "{why}");
        }
        assert_eq!(answer("/healthz", "").status, 200);
        for token in [&ops, WRONG, ADMIN] {
            assert_eq!(answer("/v0/entity?id=k", token).json()["type"], "removed");
        }
        let seat = format!("n0 at http://{one}");
        for target in ["/admin/tokens", "/admin/quotas"] {
            let refused = answer(target, ADMIN).json();
            assert_eq!(refused["type"], "removed", "{target}: {refused}");
            let why = refused["detail"].as_str().unwrap();
            assert!(why.contains("Ask a member: ") && why.contains(&seat), "{why}");
        }
        for args in [
            &["token", "list"][..],
            &["token", "create", "--name", "t"],
            &["token", "revoke", "ops"],
            &["quota", "set", "a", "--hard", "1MiB"],
            &["quota", "remove", "a"],
            &["quota", "list"],
            &["cluster", "plan"],
            &["cluster", "apply", plan],
            &["cluster", "abort"],
        ] {
            let refused = files.run(gone, "admin", args);
            let why = text(&refused.stderr);
            assert!(!refused.status.success(), "{args:?}");
            assert!(why.contains("this node was removed"), "{args:?}: {why}");
        }
    }
}
