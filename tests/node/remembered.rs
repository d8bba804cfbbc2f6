//! Outcomes that nodes remember for idempotency keys, after partitions move and disks are replaced.

use std::fs;

use kit::raw::{Client, Response};

use crate::changes::Joiner;
use crate::cluster::Cluster;
use crate::conditional::ask;
use crate::moves::{apply_change, text, wait_for_epoch};
use crate::process::wait_until;
use crate::rollback::copy;

const KEYS: usize = 40;

/// An answer to an addition: status, body with the sum, and ETag.
type Answer = (u16, Vec<u8>, Option<String>);

fn answer(response: &Response) -> Answer {
    (response.status, response.body(), response.header("etag").map(str::to_owned))
}

/// Adds 5 to a counter, with an idempotency key.
fn add(client: &mut Client, number: usize, word: &str) -> Response {
    add_with(client, number, word, "")
}

/// Like [`add`], with the further query parameters `more`.
fn add_with(client: &mut Client, number: usize, word: &str, more: &str) -> Response {
    let header = format!("Idempotency-Key: {word}-{number}\r\n");
    ask(client, "POST", &format!("id=n{number}&add=5{more}"), &header, "")
}

/// Adds 5 to each counter; returns the answers.
fn add_to_all(client: &mut Client) -> Vec<Answer> {
    (0..KEYS).map(|number| answer(&add(client, number, "first"))).collect()
}

/// Adds 5 to each counter, and then overwrites it with 100, so that the counter's record no longer
/// has the outcome of the addition. Returns the answers to the additions.
fn count(client: &mut Client) -> Vec<Answer> {
    count_with(client, "")
}

/// Like [`count`], with the further query parameters `more` for the additions.
fn count_with(client: &mut Client, more: &str) -> Vec<Answer> {
    let count = |number| {
        let first = add_with(client, number, "first", more);
        assert_eq!((first.status, first.body()), (200, b"5".to_vec()), "{number}");
        let put = ask(client, "PUT", &format!("id=n{number}"), "", "100");
        assert_eq!(put.status, 201, "{number}");
        answer(&first)
    };
    (0..KEYS).map(count).collect()
}

/// Waits until n2 is up and has all hints of the two other nodes.
fn wait_for_hints(cluster: &Cluster) {
    wait_until("the delivery of all hints", || {
        (0..2).all(|node| {
            let status = cluster.status(node);
            let hints = |peer: &serde_json::Value| peer["hints"] == 0 && peer["up"] == true;
            status["peers"].as_array().unwrap().iter().all(hints)
        })
    });
    cluster.wait_until_settled();
}

fn is_told(client: &mut Client, firsts: &[Answer]) {
    for (number, first) in firsts.iter().enumerate() {
        let again = add(client, number, "first");
        assert_eq!(answer(&again), *first, "{number}: {}", text(&again.body()));
        let header = format!("Idempotency-Key: first-{number}\r\n");
        let other = ask(client, "POST", &format!("id=n{number}&add=6"), &header, "");
        assert_eq!(other.status, 422, "{number}: {}", text(&other.body()));
    }
}

fn is_done(client: &mut Client, word: &str, sum: &str) {
    for number in 0..KEYS {
        let added = add(client, number, word);
        assert_eq!(text(&added.body()), sum, "{number}");
    }
}

/// Replaces two of three disks, one after another. A node counts as rebuilt only after the other
/// nodes have sent it the outcomes that they remember.
#[test]
fn idempotency_keys_survive_the_replacement_of_disks_one_at_a_time() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    // All replicas must acknowledge. Otherwise a replica might miss a write on a busy machine. If
    // the disk of a replica with the write were then lost, no node could tell that a majority had
    // it.
    let firsts = count_with(&mut cluster.client(0), "&ack=3");
    for node in [2, 0] {
        cluster.stop(node);
        cluster.wipe(node);
        cluster.up(node);
        cluster.wait_until_settled();
        let status = cluster.status(node);
        assert_eq!(status["forgotten_idempotency_keys"], serde_json::Value::Null, "{status}");
    }
    is_done(&mut cluster.client(2), "second", "105");
    is_told(&mut cluster.client(0), &firsts);
    is_done(&mut cluster.client(1), "third", "110");
    for number in 0..KEYS {
        let new = ask(
            &mut cluster.client(0),
            "PUT",
            &format!("id=new{number}"),
            &format!("Idempotency-Key: new-{number}\r\n"),
            "value",
        );
        assert_eq!(new.status, 201, "{number}: {}", text(&new.body()));
    }
    // Without the node that kept its disk, the two rebuilt nodes must know all outcomes.
    cluster.kill(1);
    is_told(&mut cluster.client(2), &firsts);
    // The outcomes are durable.
    cluster.stop(0);
    cluster.up(0);
    wait_until("both are up", || add(&mut cluster.client(0), 0, "fourth").status == 200);
    is_told(&mut cluster.client(0), &firsts);
    is_done(&mut cluster.client(2), "fourth", "115");
}

/// n2 is down during the additions, and gets their records as hints. Then n0 loses its disk: n1 and
/// n2 must know the additions under one ballot.
#[test]
fn idempotency_keys_survive_the_loss_of_a_disk_after_a_replica_got_the_writes_as_hints() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.stop(2);
    let mut client = cluster.client(0);
    let firsts = add_to_all(&mut client);
    // The hints have the records of the second additions, which name the first ones too.
    is_done(&mut client, "other", "10");
    cluster.up(2);
    wait_for_hints(&cluster);
    for number in 0..KEYS {
        // All replicas have the record that no longer names the addition.
        let put = ask(&mut client, "PUT", &format!("id=n{number}&ack=3"), "", "100");
        assert_eq!(put.status, 201, "{number}");
    }
    drop(client);
    cluster.stop(0);
    cluster.wipe(0);
    cluster.up(0);
    cluster.wait_until_settled();
    is_told(&mut cluster.client(1), &firsts);
    is_done(&mut cluster.client(2), "second", "105");
}

/// n2 misses four additions to each counter, and gets their outcome with one hint. Later additions
/// overwrite the record that names them. While n1 is down, n0 and n2 must still know all four.
#[test]
fn writes_of_a_hint_are_known_while_another_replica_is_down() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.stop(2);
    let mut client = cluster.client(0);
    let add_all = |client: &mut Client, word: &str| -> Vec<Answer> {
        (0..KEYS).map(|number| answer(&add(client, number, word))).collect()
    };
    let words = ["one", "two", "three", "four"];
    let answers = words.map(|word| add_all(&mut client, word));
    cluster.up(2);
    wait_for_hints(&cluster);
    // A record names the last eight writes.
    for later in 0..8 {
        add_all(&mut client, &format!("later-{later}"));
    }
    cluster.stop(1);
    for (word, firsts) in words.iter().zip(&answers) {
        for (number, first) in firsts.iter().enumerate() {
            let again = add(&mut client, number, word);
            assert_eq!(answer(&again), *first, "{word} {number}: {}", text(&again.body()));
        }
    }
    for node in [0, 2] {
        let metrics = text(&cluster.client(node).get("/metrics").body());
        let conflicts = metrics.lines().find(|line| line.starts_with("kvorum_version_conflicts"));
        assert_eq!(conflicts, Some("kvorum_version_conflicts_total 0"));
    }
}

/// n1 restarts after it has accepted the additions, and then accepts records that still name them.
/// n0 and n1 must continue to name one ballot, because n2 missed the additions.
#[test]
fn idempotency_keys_survive_the_restart_of_a_node_while_another_is_down() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.kill(2);
    let mut client = cluster.client(0);
    let firsts = add_to_all(&mut client);
    cluster.kill(1);
    cluster.up(1);
    wait_until("two are up", || add(&mut cluster.client(0), KEYS, "other").status == 200);
    is_done(&mut cluster.client(0), "second", "10");
    cluster.up(2);
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        let put = ask(&mut client, "PUT", &format!("id=n{number}"), "", "100");
        assert_eq!(put.status, 201, "{number}");
    }
    is_told(&mut client, &firsts);
}

/// Replaces the disk of n0, and then restores an older copy of n2, which remembers n0's former
/// disk. n0 has been rebuilt since, and must not be rebuilt again together with n2: both nodes
/// would forget.
#[test]
fn an_older_copy_of_a_directory_makes_no_other_node_forget() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let firsts = count_with(&mut cluster.client(0), "&ack=3");
    cluster.stop(2);
    let aside = tempfile::tempdir().unwrap();
    copy(&cluster.data(2), aside.path());
    cluster.up(2);
    cluster.wait_until_settled();
    cluster.stop(0);
    cluster.wipe(0);
    cluster.up(0);
    cluster.wait_until_settled();
    // After this restart n0 knows about its rebuild only from its disk.
    cluster.stop(0);
    cluster.up(0);
    cluster.wait_until_settled();
    cluster.stop(2);
    let data = cluster.data(2);
    fs::remove_dir_all(&data).unwrap();
    copy(aside.path(), &data);
    cluster.up(2);
    cluster.wait_until_settled();
    for node in 0..3 {
        let status = cluster.status(node);
        assert_eq!(status["forgotten_idempotency_keys"], serde_json::Value::Null, "{status}");
    }
    is_done(&mut cluster.client(1), "second", "105");
    is_told(&mut cluster.client(2), &firsts);
    let log = cluster.stop_for_its_log(0);
    assert!(!log.contains("rebuild started"), "{log}");
}

/// Two of three replicas are new, and have received the outcomes that the third replica remembers.
/// The third replica, which was the leader of some keys, is killed.
#[test]
fn those_to_which_keys_have_moved_know_what_was_done_and_what_was_not() {
    let mut cluster = Cluster::start(1, &["--replicas", "3"]);
    let firsts = count(&mut cluster.client(0));
    let joiners = ["d", "e"].map(|name| Joiner::new(&cluster, name));
    let starts = joiners.each_ref().map(|joiner| joiner.asks(&cluster));
    let epoch = apply_change(&cluster, 0, &["--add", "d", "--add", "e"]);
    let [d, e] = starts.map(|starts| starts.join().unwrap());
    wait_for_epoch(&cluster, 0, epoch);
    is_told(&mut d.client(), &firsts);
    is_done(&mut e.client(), "second", "105");
    cluster.kill(0);
    is_told(&mut e.client(), &firsts);
    is_done(&mut d.client(), "third", "110");
    is_done(&mut e.client(), "third", "110");
    // The outcomes are durable.
    let [d, e] = [(&joiners[0], d), (&joiners[1], e)].map(|(joiner, node)| {
        let data = node.kill();
        joiner.starts(data)
    });
    let [d, e] = [d, e].map(|starts| starts.join().unwrap());
    wait_until("both are up", || add(&mut d.client(), 0, "fourth").status == 200);
    is_told(&mut d.client(), &firsts);
    is_done(&mut e.client(), "fourth", "115");
}

/// The first node of the cluster restarts after the cluster has grown. No disk was lost, so all
/// outcomes are still known.
#[test]
fn a_single_node_that_grew_into_a_cluster_forgets_nothing_by_a_restart() {
    let mut cluster = Cluster::start(1, &["--replicas", "3"]);
    let firsts = count(&mut cluster.client(0));
    let joiners = ["d", "e"].map(|name| Joiner::new(&cluster, name));
    let starts = joiners.each_ref().map(|joiner| joiner.asks(&cluster));
    let epoch = apply_change(&cluster, 0, &["--add", "d", "--add", "e"]);
    let [d, _e] = starts.map(|starts| starts.join().unwrap());
    wait_for_epoch(&cluster, 0, epoch);
    cluster.kill(0);
    cluster.up(0);
    wait_until("it serves", || add(&mut cluster.client(0), 0, "second").status == 200);
    let status = cluster.status(0);
    assert_eq!(status["forgotten_idempotency_keys"], serde_json::Value::Null, "{status}");
    for (number, client) in [cluster.client(0), d.client()].iter_mut().enumerate() {
        let header = format!("Idempotency-Key: new-{number}\r\n");
        let new = ask(client, "PUT", &format!("id=new{number}"), &header, "value");
        assert_eq!(new.status, 201, "{number}: {}", text(&new.body()));
    }
    is_told(&mut cluster.client(0), &firsts);
}

/// A majority applied the write while the third replica was down, and the key's record has since
/// lost the outcome. A repeat that requires all three replicas gets the first answer.
#[test]
fn a_repeat_that_asks_for_more_replicas_than_did_the_write_is_answered_as_the_first_time() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.kill(2);
    let first = answer(&add(&mut cluster.client(0), 1, "first"));
    assert_eq!((first.0, &first.1[..]), (200, &b"5"[..]));
    for number in 0..12 {
        let added = add(&mut cluster.client(0), 1, &format!("other-{number}"));
        assert_eq!(added.status, 200, "{}", text(&added.body()));
    }
    cluster.up(2);
    cluster.wait_until_settled();
    for node in [0, 1, 2] {
        for more in ["", "&ack=2", "&ack=3", "&ack=3"] {
            let again = add_with(&mut cluster.client(node), 1, "first", more);
            assert_eq!(answer(&again), first, "{node} {more}: {}", text(&again.body()));
        }
    }
    // A plain deletion follows; the receipt of a repeat must still name all holders.
    assert_eq!(ask(&mut cluster.client(0), "DELETE", "id=n1&ack=3", "", "").status, 202);
    for node in [0, 1, 2] {
        let again = add_with(&mut cluster.client(node), 1, "first", "&ack=3&receipt=true");
        assert_eq!(answer(&again), first, "{node}: {}", text(&again.body()));
        let receipt = again.header("kvorum-receipt").unwrap();
        assert!(["\"n0\"", "\"n1\"", "\"n2\""].iter().all(|it| receipt.contains(it)), "{receipt}");
    }
}
