//! Plaintext nodes beside nodes with TLS: refused joins, warnings in plans, and a cluster that
//! changes from plaintext to TLS while it serves.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use kit::ports;
use kit::process::Process;
use kit::raw::Client;
use serde_json::Value;

use super::Certs;
use super::nodes::write;
use crate::cluster::Cluster;
use crate::moves::{apply_change, wait_for_epoch};
use crate::process::{Node, kvorum, run, wait_until};

/// An advertised URL at which no process listens.
const ELSEWHERE: &str = "http://10.0.0.4:8080";

/// Returns the command that starts node d, which asks to join.
fn d_asks(certs: &Certs, data: &std::path::Path, of: &str, more: &[&str]) -> Command {
    let mut command = kvorum();
    command.args(["serve", "--listen", "127.0.0.1:0", "--name", "d", "--join", of, "--data"]);
    command.arg(data).args(["--cluster-secret-file", &certs.text("secret")]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits until d asks to join; returns the warnings of a plan that adds d.
fn wait_for_warnings(certs: &Certs, at: &str) -> String {
    let mut planned = Value::Null;
    wait_until("it asks to join", || {
        let ca = certs.text("ca.pem");
        let plan = ["cluster", "plan", "--json", "--add", "d", "--url", at, "--ca-file", &ca];
        planned = serde_json::from_slice(&run(&plan).stdout).unwrap_or_default();
        planned != Value::Null
    });
    planned["warnings"].to_string()
}

#[test]
fn nodes_by_tls_take_none_in_clear_unless_told_to_and_a_plan_warns_of_it() {
    let certs = Certs::new();
    write(&certs.path("secret"), "a secret of this test");
    let secret = certs.text("secret");
    let own = ["--name", "a", "--cluster-secret-file", &secret];
    let data = tempfile::tempdir().unwrap();
    let url = |node: &Node| format!("https://{}", node.address);

    let node = certs.node(&own);
    let mut asks = d_asks(&certs, data.path(), &url(&node), &["--advertise", ELSEWHERE]);
    let mut asking = Process::start(&mut asks).unwrap();
    let mut log = BufReader::new(asking.take_stderr().unwrap());
    let mut said = String::new();
    wait_until("its end", || {
        assert!(!said.contains("it knows that this node asks"), "it is taken: {said}");
        log.read_line(&mut said).unwrap() == 0
    });
    assert!(said.contains(&format!("would reach node d in clear, at {ELSEWHERE}")), "{said}");
    assert!(said.contains("--tls-cert") && said.contains("--advertise"), "{said}");

    let node = certs.node(&[&own[..], &["--insecure"]].concat());
    let mut asks = d_asks(&certs, data.path(), &url(&node), &["--advertise", ELSEWHERE]);
    let asking = Process::start(&mut asks).unwrap();
    let said = wait_for_warnings(&certs, &url(&node));
    assert!(said.contains(&format!("reached in clear: d at {ELSEWHERE}. ")), "{said}");
    assert!(said.contains("--tls-cert"), "{said}");
    drop(asking);

    // The opposite case: the member is in plaintext, and the joining node has TLS.
    let node = Node::start(&own);
    let of = format!("http://{}", node.address);
    let tls = certs.serve();
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    let _asking = Process::start(&mut d_asks(&certs, data.path(), &of, &tls)).unwrap();
    let said = wait_for_warnings(&certs, &of);
    assert!(said.contains(&format!("reached in clear: a at {of}. ")), "{said}");
}

/// The test follows docs/operate/tls-and-tokens.md, *A cluster in clear gets TLS*.
#[test]
fn a_cluster_in_clear_gets_tls_one_node_after_the_other() {
    let certs = Certs::new();
    write(&certs.path("secret"), "a secret of this test");
    let secret = ["--cluster-secret-file", &certs.text("secret")];
    let mut cluster = Cluster::start(3, &secret);
    cluster.wait_until_settled();
    // After the first change nodes learn each other's URLs from the layout.
    apply_change(&cluster, 0, &["--council", "n0"]);
    let epoch = apply_change(&cluster, 0, &["--council", "n0,n1,n2"]);
    (0..3).for_each(|node| wait_for_epoch(&cluster, node, epoch));
    let at = [0, 1, 2].map(|node| cluster.address(node));
    let data = [0, 1, 2].map(|node| {
        cluster.stop(node);
        cluster.take_data(node)
    });
    let starts = |node: usize, data, more: &[&str]| {
        Node::start_at(&at[node].to_string(), kvorum(), data, &[&secret[..], more].concat())
    };
    let mut number = 0..;
    let mut nodes = data.map(|data| Some(starts(number.next().unwrap(), data, &[])));

    let config = certs.client(None, &["http/1.1"]);
    let ca = ["--ca-file", &certs.text("ca.pem")];
    for node in 0..3 {
        let url = format!("https://{}", at[node]);
        let own = certs.serve();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let data = nodes[node].take().unwrap().stop();
        nodes[node] = Some(starts(node, data, &[&own, &["--advertise", &url][..]].concat()));
        let command = |args: &[&str]| run(&[&["cluster"], args, &["--url", &url], &ca].concat());
        let mut plan = Value::Null;
        wait_until("its vote is asked for", || {
            plan = serde_json::from_slice(&command(&["plan", "--json"]).stdout).unwrap();
            !plan["warnings"].to_string().contains("no majority")
        });
        let warns = plan["warnings"].to_string().contains("reached in clear");
        assert_eq!(warns, node < 2, "{plan}");
        let applied = command(&["apply", "--wait", plan["plan"].as_str().unwrap()]);
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        // Each node must coordinate a write that all nodes store.
        for (other, at) in at.iter().enumerate() {
            wait_until("all are reached", || {
                let mut client = if other <= node {
                    Client::connect_tls(*at, &config).unwrap()
                } else {
                    Client::connect(*at)
                };
                client.put("/v0/entity?id=k&ack=3&from=3", b"v").status == 201
            });
        }
    }
}

/// A list gives an `http://` URL to a node with TLS. `status` must show the node's answer, which
/// says what is wrong.
#[test]
fn a_connection_in_clear_to_a_node_with_tls_fails_with_the_reason() {
    let certs = Certs::new();
    write(&certs.path("secret"), "a secret of this test");
    let [a, c] = ports::addresses(2).try_into().unwrap();
    let secret = ["--cluster-secret-file".to_owned(), certs.text("secret")];
    let start = |at: SocketAddr, list: String, more: &[String]| {
        let own = [&["--cluster".to_owned(), list][..], &secret, more].concat();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Node::start_at(&at.to_string(), kvorum(), tempfile::tempdir().unwrap(), &own)
    };
    let _a = start(a, format!("a=http://{a},c=http://{c}"), &[]);
    let _c = start(c, format!("a=http://{a},c=https://{c}"), &certs.serve());
    let (at, ca) = (format!("https://{c}"), certs.text("ca.pem"));
    wait_until("the reason", || {
        let told = run(&["status", "--url", &at, "--ca-file", &ca]).stdout;
        let told = String::from_utf8_lossy(&told);
        let line = told.lines().find(|line| line.starts_with("a has no connection to c"));
        line.is_some_and(|line| line.contains("this port speaks TLS"))
    });
}

/// A certificate is valid for the advertised URL, but may not be valid for the listen address.
#[test]
fn the_greeting_of_a_node_with_tls_names_the_advertised_url() {
    let certs = Certs::new();
    let at = ports::addresses(1)[0];
    let own = format!("https://localhost:{}", at.port());
    let args = [&certs.serve()[..], &["--advertise".to_owned(), own.clone()]].concat();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let node = Node::start_at(&at.to_string(), kvorum(), tempfile::tempdir().unwrap(), &args);
    assert!(node.greeting.contains(&format!("Dashboard: {own}/ui")), "{}", node.greeting);
}
