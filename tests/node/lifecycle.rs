//! Start and stop of a node.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::process::{Node, kvorum, kvorum_at, run, wait_until};

#[test]
fn the_greeting_says_where_and_what_to_try() {
    let node = Node::start(&[]);
    let first = node.greeting.lines().next().unwrap();
    assert!(first.contains(&format!("http://{}", node.address)), "{first}");
    assert!(first.contains(node.data.path().to_str().unwrap()), "{first}");
    let curls: Vec<_> = node.greeting.lines().filter(|line| line.contains("curl ")).collect();
    assert_eq!(curls.len(), 3, "{}", node.greeting);
    assert!(curls.iter().all(|line| line.contains(&node.address.to_string())));
    assert!(!node.greeting.contains("TOKEN"), "{}", node.greeting);
    let closed = Node::start(&["--require-auth"]);
    let curls = closed.greeting.lines().filter(|line| line.contains("curl "));
    let header = "curl -H 'Authorization: Bearer TOKEN' ";
    assert_eq!(curls.filter(|line| line.contains(header)).count(), 3, "{}", closed.greeting);
    assert!(closed.greeting.contains("(TOKEN: made by kvorum token create"), "{}", closed.greeting);
}

#[test]
fn sigterm_and_ctrl_c_finish_what_is_in_flight() {
    for signal in [Signal::TERM, Signal::INT] {
        let node = Node::start(&[]);
        let mut idle = node.client();
        assert_eq!(idle.put("/v0/entity?id=a", b"v").status, 201);
        let mut busy = node.client();
        busy.send("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab");
        let mut reader = node.client();
        assert_eq!(reader.put("/v0/entity?id=large", &vec![b'v'; 1 << 20]).status, 201);
        let get = "GET /v0/entity?id=large HTTP/1.1\r\nHost: localhost\r\n\r\n";
        reader.send(get);
        assert_eq!(reader.read_head().unwrap().status, 200);
        let address = node.address;
        node.signal(signal);
        assert!(idle.is_closed(), "an idle connection is closed");
        wait_until("closing the port", || std::net::TcpStream::connect(address).is_err());
        busy.send("cde");
        let answer = busy.response();
        assert_eq!((answer.status, answer.closes()), (201, true));
        assert_eq!(reader.rest().unwrap().len(), 1 << 20);
        let (status, log) = node.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("stopped"), "{log}");
    }
}

/// An operator sends SIGHUP to make the node reload its certificates; `service.rs` tests the
/// reload.
#[test]
fn sighup_does_not_end_a_node() {
    let node = Node::start(&[]);
    node.signal(Signal::HUP);
    assert_eq!(node.client().put("/v0/entity?id=a", b"v").status, 201);
    node.signal(Signal::TERM);
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0), "SIGHUP alone ends a process by a signal: {log}");
}

#[test]
fn requests_during_a_stop_are_answered_with_connection_close() {
    let node = Node::start(&[]);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = node.client();
            assert_eq!(client.get("/v0/entity?id=a").status, 404);
            std::thread::spawn(move || {
                loop {
                    let answer = client.get("/v0/entity?id=a");
                    assert_eq!(answer.status, 404, "each request is answered");
                    if answer.closes() {
                        return;
                    }
                }
            })
        })
        .collect();
    drop(node.stop());
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// The nodes that coordinate the additions of a key complete what others have forwarded to them
/// before they stop, so no client is told that the outcome is unknown.
#[test]
fn additions_at_another_node_survive_an_orderly_stop_with_a_known_outcome() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let stopped = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let (mut connection, stopped) = (cluster.client(0), Arc::clone(&stopped));
            thread::spawn(move || {
                let mut sum = 0;
                while !stopped.load(Ordering::Relaxed) {
                    let target = format!("/v0/entity?id=sum{client}&add=1");
                    let added = connection.request("POST", &target, b"");
                    // A node that can't be reached is no loss: the write was not done.
                    let is_none = added.status >= 500 && added.json()["outcome"] == "none";
                    assert!(added.status < 300 || is_none, "{}", added.json());
                    sum += u64::from(added.status < 300);
                    if !is_none {
                        assert_eq!(added.body(), sum.to_string().as_bytes());
                    }
                }
                sum
            })
        })
        .collect();
    for round in 0..6 {
        let node = 1 + round % 2;
        cluster.stop(node);
        cluster.up(node);
        cluster.wait_until_settled();
    }
    stopped.store(true, Ordering::Relaxed);
    let sums = clients.into_iter().map(|client| client.join().unwrap());
    assert!(sums.sum::<u64>() > 0);
}

#[test]
fn a_busy_port_is_one_clear_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = tempfile::tempdir().unwrap();
    let output = run(&["serve", "--listen", &address, "--data", data.path().to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address), "{said}");
}

#[test]
fn an_unusable_directory_is_one_clear_line() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    for path in [file.clone(), file.join("below"), "/proc/nowhere".into()] {
        let path = path.to_str().unwrap();
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--data", path]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(path), "{said}");
    }
}

#[test]
fn a_directory_that_is_no_store_or_in_use_or_newer_is_one_clear_line() {
    let refused = |path: &std::path::Path, named: &str| {
        let path = path.to_str().unwrap();
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--data", path]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(named), "{said}");
    };
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("holiday.jpg"), "x").unwrap();
    refused(foreign.path(), "holiday.jpg");
    let node = Node::start(&[]);
    let data = node.data.path().join("data");
    refused(&data, "in use by another process");
    let data = node.stop();
    let store = data.path().join("data/STORE");
    let mut bytes = fs::read(&store).unwrap();
    bytes[8] += 1;
    fs::write(&store, &bytes).unwrap();
    refused(&data.path().join("data"), "checksum");
    let check = xxhash_rust::xxh3::xxh3_64(&bytes[..24]);
    bytes[24..].copy_from_slice(&check.to_le_bytes());
    fs::write(&store, bytes).unwrap();
    refused(&data.path().join("data"), "Start the release that last ran here, or a later one");
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart_and_versions_go_on() {
    for sync in ["always", "interval", "never"] {
        let mut data = tempfile::tempdir().unwrap();
        let mut last = String::new();
        for round in 0..4 {
            let node = Node::start_with(kvorum(), data, &["--sync", sync]);
            let mut client = node.client();
            for before in 0..round {
                let got = client.get(&format!("/v0/entity?id=k{before}"));
                assert_eq!(got.body(), format!("v{before}").into_bytes(), "{sync}");
            }
            assert_eq!(client.get("/v0/entities?start=k").chunks.len(), round);
            let put =
                client.put(&format!("/v0/entity?id=k{round}"), format!("v{round}").as_bytes());
            let etag = put.header("etag").unwrap();
            assert!(*etag > *last, "{etag} after {last}");
            etag.clone_into(&mut last);
            data = if round % 2 == 0 { node.kill() } else { node.stop() };
        }
    }
}

#[test]
fn logs_can_be_json() {
    let node = Node::start(&["--greet", "--log-format", "json", "--log", "debug"]);
    node.signal(Signal::TERM);
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0));
    assert!(log.lines().count() >= 3, "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["timestamp"].is_string());
        assert!(line["message"].is_string() && line["fields"].is_null(), "{line}");
    }
}

/// A log collector that reads stdout and stderr gets only JSON, including the last line of a node
/// that fails to start.
#[test]
fn with_json_nothing_else_is_printed() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("data");
    let serve = |level: &str| {
        let mut command = kvorum();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--log", level]);
        command.arg("--data").arg(&data).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut node = serve("info");
    let mut log = BufReader::new(node.stderr.take().unwrap());
    let mut line = String::new();
    let serving = loop {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended");
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["message"] == "serving" {
            break event;
        }
    };
    let url = format!("http://{}", serving["address"].as_str().unwrap());
    assert_eq!(serving["url"], *url);
    for level in ["info", "off"] {
        let second = serve(level).wait_with_output().unwrap();
        assert_eq!((second.status.code(), &second.stdout[..]), (Some(1), &b""[..]));
        let said = String::from_utf8(second.stderr).unwrap();
        let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let message = last["message"].as_str().unwrap();
        assert!(last["level"] == "ERROR" && message.contains("in use by another"), "{said}");
    }
    kill_process(Pid::from_child(&node), Signal::TERM).unwrap();
    let ended = node.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(0), &b""[..]));
    for line in log.lines() {
        serde_json::from_str::<Value>(&line.unwrap()).unwrap();
    }
}

#[test]
fn a_clock_after_2112_is_refused_and_nothing_is_changed() {
    let Some(mut command) = kvorum_at("@2113-01-01 00:00:00") else { return };
    let node = Node::start(&[]);
    assert_eq!(node.client().put("/v0/entity?id=k", b"v").status, 201);
    let data = node.stop();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data.path().join("data"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains("a time after 2112-09-16"), "{said}");
    let node = Node::start_with(kvorum(), data, &[]);
    assert_eq!(node.client().get("/v0/entity?id=k").body(), b"v");
}

/// The part of row 12 of docs/results/reliability.md about the acceptance of connections.
#[test]
fn too_few_file_descriptors_refuse_nobody_who_is_served() {
    // A node accepts no more connections than its descriptors permit at its start. So the test
    // lowers the limit of the running node to eight more than the node uses without connections.
    let node = Node::start(&["--read-threads", "1", "--loops", "1"]);
    let pid = node.proc("").split('/').nth(2).and_then(|pid| pid.parse().ok());
    let limit = Some(node.open_files() as u64 + 8);
    let lowered = Rlimit { current: limit, maximum: limit };
    prlimit(Pid::from_raw(pid.unwrap()), Resource::Nofile, lowered).unwrap();
    let mut served = node.client();
    assert_eq!(served.put("/v0/entity?id=k", b"v").status, 201);
    let crowd: Vec<_> = (0..200).map(|_| node.client()).collect();
    let failures = |client: &mut kit::raw::Client| {
        let text = String::from_utf8(client.get("/metrics").body()).unwrap();
        let line = text.lines().find(|line| line.starts_with("kvorum_accept_failures")).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    wait_until("running out", || failures(&mut served) > 0);
    assert_eq!(served.put("/v0/entity?id=k", b"w").status, 201);
    let (before, begun) = (failures(&mut served), std::time::Instant::now());
    wait_until("some more failures", || failures(&mut served) > before + 5);
    let each = begun.elapsed() / 6;
    assert!(each >= std::time::Duration::from_millis(5), "accept spins: one each {each:?}");
    drop(crowd);
    wait_until("recovery", || {
        let mut client = node.client();
        client.stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        client.send("GET /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.try_response().is_ok_and(|response| response.body() == b"w")
    });
}
