//! Nodes that connect to each other over TLS without a common CA, and authenticate with the cluster
//! secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::Value;

use super::Certs;
use crate::cluster::{Cluster, key};
use crate::process::pause_between_requests;
use crate::process::wait_until;

pub(super) fn write(path: &Path, secret: &str) {
    let new = path.with_extension("new");
    fs::write(&new, secret).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

const OLD: &str = "the secret of before";
const NEW: &str = "the secret that follows";

#[test]
fn nodes_need_no_certificate_of_each_other_even_where_clients_do() {
    let certs = Certs::new();
    certs.make(&["client"]);
    write(&certs.path("secret"), OLD);
    let mut args = certs.serve();
    let more = [("--tls-client-ca", "ca.pem"), ("--cluster-secret-file", "secret")];
    args.extend(more.iter().flat_map(|(flag, file)| [(*flag).to_owned(), certs.text(file)]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut cluster =
        Cluster::start_with_tls(3, &args, certs.client(Some("client"), &["http/1.1"]));
    cluster.wait_until_settled();
    cluster.fill(50, b"a value");
    cluster.kill(1);
    cluster.up(1);
    cluster.wait_until_settled();
    let value = vec![7; 900_000];
    cluster.fill(5, &value);
    // Repeats the read, because on a busy machine a replica may answer after the deadline.
    wait_until("an answer by all three", || {
        let got = cluster.client(1).get(&format!("{}&ack=3&from=3", key(4)));
        assert!(matches!(got.status, 200 | 503 | 504), "{}", got.status);
        assert!(got.status != 200 || got.body() == value);
        got.status == 200
    });
    // The node that collects the cluster's status authenticates to each other node, and each other
    // node to it.
    wait_until("each shows itself", || {
        let answer = cluster.client(2).get("/v0/cluster").body();
        let told: Value = serde_json::from_slice(&answer).unwrap();
        let shows = |node: &Value| node["up"] == true && node["error"].is_null();
        told["nodes"].as_array().unwrap().iter().all(shows)
    });
}

#[test]
fn the_secret_is_replaced_under_load_while_nodes_run() {
    let certs = Certs::new();
    let [own, also] = ["secret", "also"].map(|name| certs.path(name));
    write(&own, OLD);
    let mut args = certs.serve();
    let more = [("--cluster-secret-file", "secret"), ("--cluster-secret-also-file", "also")];
    args.extend(more.iter().flat_map(|(flag, file)| [(*flag).to_owned(), certs.text(file)]));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start_with_tls(3, &args, certs.client(None, &[]));
    cluster.with(&[&args[..], &["--log", "info"]].concat()[..args.len()]);
    cluster.wait_until_settled();
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut client = cluster.client(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let number = written.fetch_add(1, Ordering::Relaxed) as usize % 100;
                let put = client.put(&format!("{}&ack=2&from=3", key(number)), b"v");
                assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body()));
                pause_between_requests();
            }
        });
        // Each node reloads the files at its own time, up to a second later. So a restarted node
        // connects to nodes with the old files and to nodes with the new files.
        for (mine, others) in [(OLD, NEW), (NEW, OLD), (NEW, "")] {
            write(&also, others);
            write(&own, mine);
            for node in [1, 2] {
                cluster.stop(node);
                cluster.up(node);
                // Writes to all replicas, through the restarted node and through n0.
                for asked in [node, 0] {
                    wait_until("all replicas are back", || {
                        let mut client = cluster.client(asked);
                        let put = client.put(&format!("{}&ack=3&from=3", key(200)), b"v");
                        put.status == 201
                    });
                }
            }
            let before = written.load(Ordering::Relaxed);
            wait_until("requests go on", || written.load(Ordering::Relaxed) > before + 10);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // A node with the old secret must be refused.
    cluster.stop(2);
    write(&also, "");
    let old = certs.path("old");
    write(&old, OLD);
    let old = old.to_str().unwrap().to_owned();
    let stranger: Vec<&str> = [&args[..4], &["--cluster-secret-file", &old]].concat();
    cluster.with(&stranger);
    cluster.up(2);
    assert_eq!(cluster.client(0).put(&format!("{}&ack=3&from=3", key(1)), b"v").status, 504);
    let log = cluster.stop_for_its_log(2);
    assert!(log.contains("different cluster secrets"), "{log}");
}
