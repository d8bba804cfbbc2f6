//! The procedures of docs/operate/tls-and-tokens.md: three nodes get TLS and tokens. Then the
//! certificate, the secret and the token are replaced while a client sends requests, none of which
//! may fail.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kit::raw::Client;
use parking_lot::Mutex;
use serde_json::Value;

use super::Certs;
use super::nodes::write;
use crate::cluster::Cluster;
use crate::process::{pause_between_requests, run, wait_until};

/// The files of an operator, and the URL of a node.
struct Desk {
    certs: Certs,
    url: String,
}

impl Desk {
    fn path(&self, name: &str) -> PathBuf {
        self.certs.path(name)
    }

    /// Runs a command with the admin token.
    fn run(&self, args: &[&str]) -> Output {
        let (ca, token) = (self.certs.text("ca.pem"), self.certs.text("admin-token"));
        run(&[args, &["--url", &self.url, "--ca-file", &ca, "--token-file", &token]].concat())
    }

    /// Runs a command with the admin token, which must succeed; returns its stdout.
    fn asks(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?} {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn token(&self, name: &str) -> String {
        let made = self.asks(&["token", "create", "--name", name, "--prefix", "shop/"]);
        made.trim().to_owned()
    }
}

/// Sends a PUT on the client's connection; returns the status.
fn put(client: &mut Client, token: &str, key: &str) -> u16 {
    let head = format!(
        "PUT /v0/entity?id=shop/{key} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \
         {token}\r\nContent-Length: 1\r\n\r\nv"
    );
    client.send(head);
    client.response().status
}

fn read_metric(cluster: &Cluster, node: usize, admin: &str, what: &str) -> u64 {
    let mut client = cluster.client(node);
    client.send(format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin}\r\n\r\n"
    ));
    let text = String::from_utf8(client.response().body()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

/// Waits until all nodes accept a token, and returns it. A majority decides the token, and the
/// third node learns of it a moment later.
fn wait_until_known(cluster: &Cluster, token: String) -> String {
    for node in 0..3 {
        wait_until("a token is known", || put(&mut cluster.client(node), &token, "k") == 201);
    }
    token
}

#[test]
fn from_nothing_to_three_nodes_and_everything_is_replaced_under_load() {
    let certs = Certs::new();
    let admin = "an admin token for this test";
    write(&certs.path("admin-token"), admin);
    write(&certs.path("secret"), "the secret of before");
    let files = [
        ("--admin-token-file", "admin-token"),
        ("--cluster-secret-file", "secret"),
        ("--cluster-secret-also-file", "secret-also"),
    ];
    let mut args = certs.serve();
    args.extend(files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), certs.text(file)]));
    args.push("--require-auth".to_owned());
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let config = certs.client(None, &[]);
    let cluster = Cluster::start_with_tls(3, &words, config);
    let url = format!("https://{}", cluster.address(0));
    let desk = Desk { certs, url };
    wait_until("all nodes are up", || desk.run(&["status"]).status.success());

    let token = Mutex::new(wait_until_known(&cluster, desk.token("shop")));
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut plain = cluster.client(0);
    assert_eq!(put(&mut plain, "no token", "k"), 401);
    let goes_on = || {
        let before = done.load(Ordering::Relaxed);
        wait_until("requests go on", || done.load(Ordering::Relaxed) > before + 30);
    };
    // Waits until the metric `what` is at least `times` on each node, and then until further
    // requests have succeeded.
    let step = |what: &str, times: u64| {
        for node in 0..3 {
            wait_until(what, || read_metric(&cluster, node, admin, what) >= times);
        }
        goes_on();
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = cluster.client(1);
            while !stop.load(Ordering::Relaxed) {
                let number = done.fetch_add(1, Ordering::Relaxed);
                if number.is_multiple_of(10) {
                    client = cluster.client(number as usize / 10 % 3);
                }
                let with = token.lock().clone();
                assert_eq!(put(&mut client, &with, &(number % 50).to_string()), 201, "{number}");
                pause_between_requests();
            }
        });
        goes_on();
        // Replaces the certificate.
        desk.certs.make(&["node", "--host", "127.0.0.1", "--expires", "30d"]);
        step("kvorum_tls_reloads_total", 1);
        // Replaces the cluster's secret, in three steps.
        let reloads = "kvorum_cluster_secret_reloads_total";
        write(&desk.path("secret-also"), "the secret that follows");
        step(reloads, 1);
        write(&desk.path("secret"), "the secret that follows");
        write(&desk.path("secret-also"), "the secret of before");
        step(reloads, 2);
        // Some nodes may have reloaded the files between the two writes.
        fs::remove_file(desk.path("secret-also")).unwrap();
        step(reloads, 3);
        // Replaces the token.
        let next = wait_until_known(&cluster, desk.token("shop-2"));
        *token.lock() = next;
        goes_on();
        desk.asks(&["token", "revoke", "shop"]);
        goes_on();
        stop.store(true, Ordering::Relaxed);
    });
    let told: Value = serde_json::from_str(&desk.asks(&["token", "list", "--json"])).unwrap();
    assert!(!told.to_string().contains(r#""shop""#), "{told}");
    // A node that reloaded the two files at different times may be a second behind.
    wait_until("all nodes prove themselves by the new secret", || {
        desk.run(&["status"]).status.success()
    });
}
