//! HTTP answers of a node that waits for a place in a cluster.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use kit::process::Process;
use kit::raw::{Client, Response};
use tempfile::TempDir;

use crate::process::{kvorum, wait_until};
use crate::tls::Certs;

/// A URL at which no cluster answers.
const NOBODY: &str = "http://127.0.0.1:9";

/// A node process that waits for its place.
struct Waiting {
    _process: Process,
    address: SocketAddr,
    _data: TempDir,
}

impl Waiting {
    fn start(args: &[String]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut command = kvorum();
        command.args(["serve", "--listen", "127.0.0.1:0", "--name", "w", "--join", NOBODY]);
        command.args(args).arg("--data").arg(data.path().join("data"));
        command.env("KVORUM_CLUSTER_SECRET", "a secret of this test");
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(pipes).unwrap();
        let mut greeting = String::new();
        BufReader::new(process.take_stdout().unwrap()).read_line(&mut greeting).unwrap();
        let (_, url) = greeting.split_once("://").unwrap_or_else(|| panic!("{greeting}"));
        let address = url.split_whitespace().next().unwrap().parse().unwrap();
        Self { _process: process, address, _data: data }
    }
}

fn text(answer: &Response) -> String {
    String::from_utf8(answer.body()).unwrap()
}

#[test]
fn health_checks_are_answered() {
    let certs = Certs::new();
    for args in [vec![], certs.serve()] {
        let node = Waiting::start(&args);
        // A client that prefers HTTP/2 learns in the handshake that the waiting node does not offer
        // it.
        let config = certs.client(None, &["h2", "http/1.1"]);
        let client = || match args.is_empty() {
            true => Client::connect(node.address),
            false => {
                let mut client = Client::connect_tls(node.address, &config).unwrap();
                assert_eq!(client.tls().alpn_protocol(), Some(&b"http/1.1"[..]));
                client
            }
        };
        assert_eq!(client().get("/healthz").status, 200);
        let ready = client().get("/readyz");
        assert_eq!(ready.status, 503);
        assert!(text(&ready).contains(NOBODY), "{ready:?}");
        let refused = client().request("POST", "/healthz", b"x");
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    }
}

#[test]
fn a_refusal_reaches_a_client_that_still_sends_its_value() {
    let certs = Certs::new();
    let value = vec![b'v'; 5 << 20];
    for args in [vec![], certs.serve()] {
        let node = Waiting::start(&args);
        let config = certs.client(None, &["http/1.1"]);
        for _ in 0..4 {
            let mut client = match args.is_empty() {
                true => Client::connect(node.address),
                false => Client::connect_tls(node.address, &config).unwrap(),
            };
            let refused = client.put("/v0/entity?id=k", &value);
            let problem = refused.json();
            assert_eq!((refused.status, &problem["outcome"]), (503, &"none".into()));
        }
    }
}

#[test]
fn a_request_in_clear_is_told_that_the_port_speaks_tls() {
    let node = Waiting::start(&Certs::new().serve());
    let refused = Client::connect(node.address).get("/healthz");
    assert_eq!(refused.status, 400);
    assert!(text(&refused).contains("this port speaks TLS"), "{refused:?}");
}

#[test]
fn idle_connections_do_not_delay_a_health_check() {
    let node = Waiting::start(&[]);
    wait_until("an answer while later connections idle", || {
        let connect = |_| TcpStream::connect(node.address).unwrap();
        let idle: Vec<TcpStream> = (0..200).map(connect).collect();
        assert_eq!(Client::connect(node.address).get("/healthz").status, 200);
        // If the node served the connections one after another, it would have closed this one.
        let last = &idle[idle.len() - 50];
        last.set_nonblocking(true).unwrap();
        last.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
}
