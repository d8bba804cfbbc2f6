//! A log output that is closed, full or stalled: the node continues to serve, and can be stopped.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{ChildStderr, Command};

use kit::raw::Client;
use rustix::process::Signal;

use crate::process::{Node, wait_until};

/// Number of log lines that exceed the buffers of pipe and node; they have at least 1.5 MiB.
pub(crate) const MANY: usize = 12_000;

/// Number of requests in flight at the same time.
const WINDOW: usize = 200;

/// Makes the node log `lines` lines: while one recording runs, the node refuses each further
/// request for a recording, and logs the refusal.
pub(crate) fn log_lines(node: SocketAddr, lines: usize) {
    let get = |seconds| {
        format!("GET /admin/profile?seconds={seconds} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    };
    let mut client = Client::connect(node);
    let _recorder = loop {
        let mut recorder = Client::connect(node);
        recorder.send(get(300));
        client.send(get(1));
        // The node answers this request with 409, unless it arrived before the recorder's request.
        if client.response().status == 409 {
            break recorder;
        }
    };
    for _ in 0..lines / WINDOW {
        client.send(get(1).repeat(WINDOW));
        for _ in 0..WINDOW {
            assert_eq!(client.response().status, 409);
        }
    }
}

fn dropped_lines(client: &mut Client) -> u64 {
    let text = String::from_utf8(client.get("/metrics").body()).unwrap();
    let line = text.lines().find(|line| line.starts_with("kvorum_log_lines_dropped_total "));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn serves(node: &Node) {
    let mut client = node.client();
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"v");
}

fn stops(node: Node) {
    node.signal(Signal::TERM);
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0), "{status}: {log}");
}

/// Starts a node, and makes it log more lines than its buffers hold while nobody reads its stderr.
fn start_stalled() -> (Node, ChildStderr) {
    let mut node = Node::start(&["--sync", "never"]);
    let stderr = node.take_stderr();
    log_lines(node.address, MANY);
    // The client connects only now, because the node disconnects a client that is idle for long.
    let mut client = node.client();
    assert!(dropped_lines(&mut client) > 0, "what has no room is counted");
    (node, stderr)
}

#[test]
fn a_closed_stderr_ends_nothing() {
    let mut node = Node::start(&["--sync", "never"]);
    drop(node.take_stderr());
    log_lines(node.address, WINDOW);
    let mut client = node.client();
    wait_until("counting what nobody reads", || dropped_lines(&mut client) >= WINDOW as u64);
    serves(&node);
    stops(node);
}

#[test]
fn a_full_stderr_ends_nothing() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_kvorum")]);
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &["--sync", "never"]);
    log_lines(node.address, WINDOW);
    let mut client = node.client();
    wait_until("counting what finds no room", || dropped_lines(&mut client) >= WINDOW as u64);
    serves(&node);
    stops(node);
}

#[test]
fn a_stalled_stderr_holds_up_neither_requests_nor_the_end() {
    let (node, stderr) = start_stalled();
    serves(&node);
    stops(node);
    drop(stderr);
}

#[test]
fn the_number_of_dropped_lines_is_logged_once_stderr_is_read() {
    let (node, mut stderr) = start_stalled();
    let reader = std::thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).unwrap();
        log
    });
    let mut client = node.client();
    let before = dropped_lines(&mut client);
    serves(&node);
    stops(node);
    let log = reader.join().unwrap();
    let counts = log.lines().filter(|line| line.contains("log lines were dropped"));
    let count = |line: &str| line.rsplit_once("lines=").unwrap().1.parse::<u64>().unwrap();
    let logged: u64 = counts.map(count).sum();
    assert!((before..=MANY as u64).contains(&logged), "{logged} of {before}");
    assert!(log.lines().last().unwrap().contains("stopped"), "{log}");
    let is_whole = |line: &str| line.contains("kvorum::") || line.contains(" audit: ");
    assert!(log.lines().all(is_whole), "every line is whole: {log}");
}

/// A refused start prints its reason in one line on stderr. If stderr can't be written, the exit
/// code must still report the failure.
#[test]
fn a_refusal_that_nobody_reads_has_its_exit_code() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = tempfile::tempdir().unwrap();
    for (args, code) in [
        (["--listen", address.as_str()], 1),
        (["--listen", "nonsense"], 2),
        (["--max-value", "1GiB"], 2),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_kvorum")]);
        command.args(["serve", "--data"]).arg(data.path().join("data")).args(args);
        assert_eq!(command.status().unwrap().code(), Some(code), "{args:?}");
    }
}
