//! The data directory of a running node: changes of its files, and access by other processes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::raw::Client;

use crate::process::{Node, kvorum, run, wait_until};

fn put(client: &mut Client, key: &str) -> u16 {
    client.put(&format!("/v0/entity?id={key}"), b"value").status
}

/// Asserts that the node reports in all interfaces that it accepts no writes.
fn takes_no_writes(node: &Node, what: &str) {
    let mut client = node.client();
    let mut ready = client.get("/readyz");
    wait_until(&format!("{what}: being noticed"), || {
        ready = client.get("/readyz");
        ready.status == 503
    });
    let cause = String::from_utf8(ready.body()).unwrap();
    let directory = node.data.path().join("data");
    let directory = directory.to_str().unwrap();
    assert!(cause.contains(directory), "{what}: {cause}");
    let status = client.get("/v0/status").body();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert!(status["failed"].as_str().unwrap().contains(directory), "{what}: {status}");
    let metrics = String::from_utf8(client.get("/metrics").body()).unwrap();
    assert!(metrics.contains("\nkvorum_store_failed 1\n"), "{what}");
    for i in 0..100 {
        assert_eq!(put(&mut client, &format!("late{i}")), 500, "{what}");
    }
    // Conditional writes need ballots from the node's clock, and fail in the same way. They
    // continue to fail after the clock has passed its bound, at most a second later, because a new
    // bound can't be stored.
    let conditional = "PUT /v0/entity?id=once HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n\
        Content-Length: 1\r\n\r\nv";
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        let mut client = node.client();
        client.send(conditional);
        let answer = client.response();
        let status = answer.status;
        let text = String::from_utf8(answer.body()).unwrap();
        assert!(status == 500 && text.contains("storage-failed"), "{what}: {status} {text}");
    }
    assert_eq!(client.get("/v0/entity?id=k").body(), b"value", "{what}: reads go on");
    assert_eq!(client.get("/healthz").status, 200, "{what}");
}

fn check_loss(what: &str, lose: impl Fn(&Path)) {
    for sync in ["always", "never"] {
        let node = Node::start(&["--sync", sync]);
        assert_eq!(put(&mut node.client(), "k"), 201);
        lose(&node.data.path().join("data"));
        takes_no_writes(&node, what);
        node.signal(rustix::process::Signal::TERM);
        let (status, log) = node.wait();
        assert_eq!(status.code(), Some(1), "{what}: {log}");
        assert!(log.contains("the store accepts no more writes"), "{what}: {log}");
    }
}

#[test]
fn a_directory_that_was_removed_takes_no_more_writes() {
    check_loss("rm -rf data", |data| fs::remove_dir_all(data).unwrap());
}

#[test]
fn a_directory_that_was_moved_away_takes_no_more_writes() {
    check_loss("mv data elsewhere", |data| fs::rename(data, data.with_file_name("moved")).unwrap());
}

#[test]
fn a_directory_with_another_in_its_place_takes_no_more_writes() {
    check_loss("another directory", |data| {
        fs::rename(data, data.with_file_name("moved")).unwrap();
        fs::create_dir(data).unwrap();
    });
}

#[test]
fn a_directory_that_was_emptied_takes_no_more_writes() {
    check_loss("rm -rf data/*", |data| {
        for entry in fs::read_dir(data).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    });
}

#[test]
fn a_directory_whose_lock_file_was_removed_lets_nobody_else_in() {
    let node = Node::start(&[]);
    let data = node.data.path().join("data");
    fs::remove_file(data.join("LOCK")).unwrap();
    for _ in 0..2 {
        let data = data.to_str().unwrap();
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--data", data]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains("in use by another"), "{said}");
    }
    assert_eq!(put(&mut node.client(), "k"), 201);
    let data = node.stop();
    let node = Node::start_with(kvorum(), data, &[]);
    assert_eq!(node.client().get("/v0/entity?id=k").body(), b"value");
}

/// Returns the size of the log in bytes, and the number of its files.
fn log(data: &Path) -> (u64, usize) {
    let files = fs::read_dir(data.join("data")).unwrap().map(|entry| entry.unwrap());
    let segments = files.filter(|file| file.file_name().to_string_lossy().ends_with(".wal"));
    let lens: Vec<_> = segments.map(|file| file.metadata().unwrap().len()).collect();
    (lens.iter().sum(), lens.len())
}

/// The node is restarted after stops and kills. Log files must not accumulate.
#[test]
fn restarts_leave_no_log_behind() {
    let args = ["--memory", "64MiB"];
    let mut data = tempfile::tempdir().unwrap();
    for life in 0..18 {
        let node = Node::start_with(kvorum(), data, &args);
        let mut client = node.client();
        for before in 0..life {
            let got = client.get(&format!("/v0/entity?id=k{before}"));
            assert_eq!(got.body(), b"value", "life {life}");
        }
        assert_eq!(put(&mut client, &format!("k{life}")), 201);
        // Of each eight runs, two end with a stop and six with a kill.
        let stopped = life % 8 < 2;
        data = if stopped { node.stop() } else { node.kill() };
        let (bytes, segments) = log(data.path());
        if stopped {
            assert!(bytes < 1024, "life {life}: {bytes} bytes of log after a stop");
        }
        // The log has the segments of at most two runs, and one segment that is allocated in
        // advance.
        assert!(segments <= 5, "life {life}: {segments} segments, {bytes} bytes");
    }
}

#[test]
fn a_directory_that_can_not_be_written_is_one_clear_line() {
    let node = Node::start(&[]);
    assert_eq!(put(&mut node.client(), "k"), 201);
    let data = node.stop();
    let path = data.path().join("data");
    // Even root can't change an immutable file. Where files can't be made immutable, the test ends
    // here.
    let store = path.join("MANIFEST");
    let lock = |flag: &str| Command::new("chattr").arg(flag).arg(&store).output();
    if !lock("+i").is_ok_and(|output| output.status.success()) {
        return;
    }
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--data", path.to_str().unwrap()]);
    lock("-i").unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains(path.to_str().unwrap()) && last.contains("MANIFEST"), "{said}");
    let node = Node::start_with(kvorum(), data, &[]);
    assert_eq!(node.client().get("/v0/entity?id=k").body(), b"value");
}
