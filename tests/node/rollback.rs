//! A node whose data directory was replaced by an older copy, or that runs beside a process on a
//! copy of its directory.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Cluster, key};
use crate::process::{run, wait_until};

const KEYS: usize = 60;

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Overwrites the files of a directory with the files of a copy. Like the restore of a file
/// system's snapshot, this keeps inodes and creation times.
fn put_back_in_place(copy: &Path, data: &Path) {
    let exists = |name: &std::ffi::OsStr| copy.join(name).exists();
    for entry in fs::read_dir(data).unwrap() {
        let entry = entry.unwrap();
        if !exists(&entry.file_name()) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for entry in fs::read_dir(copy).unwrap() {
        let entry = entry.unwrap();
        let bytes = fs::read(entry.path()).unwrap();
        fs::write(data.join(entry.file_name()), bytes).unwrap();
    }
}

/// Prepares three nodes. All have old values when n0 is stopped and copied to `aside`. Then n2 is
/// down, while n0 and n1 acknowledge newer values, deletes and new keys. Finally n0 is stopped.
fn make_outdated_copy(cluster: &mut Cluster, aside: &Path) {
    let mut client = cluster.client(1);
    for number in 0..2 * KEYS {
        let target = format!("{}&ack=3&from=3", key(number));
        until(201, || client.put(&target, b"old").status);
    }
    cluster.stop(0);
    copy(&cluster.data(0), aside);
    cluster.up(0);
    cluster.wait_until_settled();
    cluster.kill(2);
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        until(201, || client.put(&key(number), b"new").status);
        until(202, || client.delete(&key(KEYS + number)).status);
        until(201, || client.put(&key(2 * KEYS + number), b"new").status);
    }
    cluster.stop(0);
}

/// Repeats a write until it is acknowledged with `status`. On a busy machine an acknowledgment may
/// take longer than a short deadline.
fn until(status: u16, mut write: impl FnMut() -> u16) {
    wait_until("the write", || match write() {
        503 | 504 => false,
        answered => {
            assert_eq!(answered, status);
            true
        }
    });
}

/// Waits until n0 answers correctly for all keys.
fn wait_until_all_right(cluster: &Cluster) {
    wait_until("answers for all keys", || right(cluster, 0) == 3 * KEYS);
}

/// Reads all keys; asserts that each answer is correct or an error, and returns the number of
/// correct answers.
fn right(cluster: &Cluster, node: usize) -> usize {
    some_right(cluster, node, 1)
}

/// Like [`right`], but only for every `step`-th key.
fn some_right(cluster: &Cluster, node: usize, step: usize) -> usize {
    let mut client = cluster.client(node);
    let mut answered = 0;
    for number in (0..3 * KEYS).step_by(step) {
        let got = client.get(&key(number));
        let expected = if (KEYS..2 * KEYS).contains(&number) { 404 } else { 200 };
        if got.status == 504 || got.status == 503 {
            continue;
        }
        answered += 1;
        assert_eq!(got.status, expected, "key {number} through n{node}");
        if expected == 200 {
            assert_eq!(got.body(), b"new", "key {number} through n{node}");
        }
    }
    answered
}

#[test]
fn an_older_copy_of_a_directory_is_not_authoritative_until_all_others_were_heard() {
    let mut cluster = Cluster::start(3, &["--deadline", "300ms"]);
    cluster.wait_until_settled();
    let aside = tempfile::tempdir().unwrap();
    make_outdated_copy(&mut cluster, aside.path());
    let data = cluster.data(0);
    fs::remove_dir_all(&data).unwrap();
    fs::rename(aside.path(), &data).unwrap();
    // Suspends the only other node with newer data.
    cluster.signal(1, Signal::STOP);
    cluster.up(2);
    cluster.up(0);
    assert_eq!(cluster.status(0)["membership"], "verifying");
    assert_eq!(some_right(&cluster, 0, KEYS / 4), 0, "n2 alone is not two of three");
    cluster.signal(1, Signal::CONT);
    cluster.wait_until_settled();
    wait_until_all_right(&cluster);
    wait_until("all copies", || cluster.local(0).len() == 2 * KEYS);
    cluster.stop(0);
    cluster.up(0);
    let membership = cluster.status(0)["membership"].clone();
    assert!(
        membership == "starting" || membership == "member",
        "an ordinary restart: \
        {membership}"
    );
}

#[test]
fn a_file_system_that_was_put_back_is_noticed_by_what_the_others_were_told() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let aside = tempfile::tempdir().unwrap();
    make_outdated_copy(&mut cluster, aside.path());
    put_back_in_place(aside.path(), &cluster.data(0));
    cluster.up(2);
    cluster.up(0);
    for node in [0, 2] {
        right(&cluster, node);
    }
    cluster.wait_until_settled();
    wait_until_all_right(&cluster);
}

#[test]
fn of_two_processes_with_copies_of_one_directory_the_later_one_serves() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        assert_eq!(client.put(&key(number), b"old").status, 201);
    }
    let aside = tempfile::tempdir().unwrap();
    let copied = aside.path().join("data");
    copy(&cluster.data(0), &copied);
    let twin = cluster.twin(0, aside);
    wait_until("the older one's end", || {
        // The node detects its twin when a request makes it ask the other nodes.
        cluster.client(0).get(&key(0));
        cluster.client(0).get("/readyz").status == 503
    });
    let refused = cluster.client(0).get(&key(0));
    assert_eq!((refused.status, &refused.json()["type"]), (503, &"fenced".into()));
    assert_eq!(cluster.status(0)["membership"], "fenced");
    let put = cluster.client(0).put(&key(0), b"never");
    assert_eq!((put.status, &put.json()["outcome"]), (503, &"none".into()));

    wait_until("the twin is ready", || twin.client().get("/readyz").status == 200);
    let mut by_twin = twin.client();
    let written = |client: &mut kit::raw::Client| client.put(&key(1), b"twin").status == 201;
    wait_until("a write through the twin", || written(&mut by_twin));
    drop(by_twin);
    twin.stop();
    cluster.stop(0);
    cluster.up(0);
    // The original lacks the writes that its twin acknowledged. After its start it verifies its
    // data, and receives these writes.
    cluster.wait_until_settled();
    cluster.signal(2, Signal::STOP);
    let got = cluster.client(0).get(&key(1));
    assert_eq!((got.status, got.body()), (200, b"twin".to_vec()));
    cluster.signal(2, Signal::CONT);
}

/// A new directory accepts nothing up to the time of its creation plus `--max-clock-skew`, unless
/// its node is new. The round begins before that time.
#[test]
fn a_copy_from_the_beginning_of_a_cluster_brings_no_purged_deletion_back() {
    let mut cluster = Cluster::start(3, &["--max-clock-skew", "5s", "--deadline", "1s"]);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        until(201, || client.put(&format!("{}&ack=3&from=3", key(number)), b"old").status);
    }
    cluster.stop(2);
    let aside = tempfile::tempdir().unwrap();
    copy(&cluster.data(2), aside.path());
    cluster.up(2);
    cluster.wait_until_settled();
    for number in 0..KEYS {
        until(202, || client.delete(&key(number)).status);
    }
    let url = format!("http://{}", cluster.address(0));
    wait_until("a round that proves", || {
        let done = run(&["repair", "--full", "--wait", "--json", "--url", &url]);
        let round: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        round["proven"] == true
    });
    for node in 0..3 {
        let url = format!("http://{}", cluster.address(node));
        assert!(run(&["compact", "--wait", "--url", &url]).status.success());
    }
    cluster.stop(2);
    let data = cluster.data(2);
    fs::remove_dir_all(&data).unwrap();
    fs::rename(aside.path(), &data).unwrap();
    let said = cluster.expect_refused_start(2);
    assert!(said.contains("what it held was moved to"), "{said}");
    cluster.up(2);
    cluster.wait_until_settled();
    for node in 0..3 {
        let mut client = cluster.client(node);
        for number in 0..KEYS {
            let target = format!("{}&ack=3&from=3", key(number));
            wait_until("an answer", || ![503, 504].contains(&client.get(&target).status));
            assert_eq!(client.get(&target).status, 404, "key {number} through n{node}");
        }
    }
}
