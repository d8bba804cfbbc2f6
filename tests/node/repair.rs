//! Repair rounds through a node's interfaces: `/admin/repair`, `kvorum repair`, and the settings.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kit::raw::Client;
use lsm::{Batch, Db, Options, RealDisk, Space, Version};
use protocol::Clock;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use crate::cluster::{Cluster, key};
use crate::process::{Node, kvorum, run, wait_until};
use crate::unusable::{FILE_LIMIT, kvorum_with_limits};

/// Number of a cluster's keys.
const KEYS: usize = 50;

/// Settings of nodes that start no incremental rounds by themselves.
const BY_HAND: [&str; 2] = ["--repair-interval", "off"];

/// Requests a round; returns its number.
fn ask(client: &mut Client, query: &str) -> u64 {
    let asked = client.request("POST", &format!("/admin/repair{query}"), b"");
    let said = String::from_utf8(asked.body()).unwrap();
    assert_eq!((asked.status, asked.header("content-type")), (202, Some("application/json")));
    serde_json::from_str::<Value>(&said).unwrap()["number"].as_u64().unwrap()
}

fn rounds(client: &mut Client) -> Value {
    let told = client.get("/admin/repair");
    assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")));
    serde_json::from_slice(&told.body()).unwrap()
}

/// Waits until round `number` or a later one has ended; returns the report of the last ended round.
fn wait_for_round(client: &mut Client, number: u64) -> Value {
    let mut last = Value::Null;
    wait_until("the end of a round", || {
        last = rounds(client)["last"].take();
        last["number"].as_u64().is_some_and(|ended| ended >= number)
    });
    last
}

/// Runs `kvorum repair --wait` with `args` against a node.
fn repair(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    let url = format!("http://{}", cluster.address(node));
    run(&[&["repair", "--wait", "--url", &url], args].concat())
}

/// Returns the stderr of a command without progress lines, which depend on the machine's speed.
fn errors(output: &Output) -> String {
    let is_progress = |line: &&str| line.contains("waiting ") || line.contains(" records compared");
    text(&output.stderr).lines().filter(|line| !is_progress(line)).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Starts a cluster in which each node stores all keys.
fn whole(args: &[&str]) -> Cluster {
    let cluster = Cluster::start(3, &[&BY_HAND, args].concat());
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        // The values are so long that they fill several blocks.
        let value = format!("{number:05000}");
        let put = client.put(&format!("{}&ack=3&from=3", key(number)), value.as_bytes());
        assert_eq!(put.status, 201);
    }
    cluster
}

/// Stores new records in one node, which is down, as if it had received writes that no other
/// replica received and whose coordinators are gone.
fn write_to_one_node(cluster: &Cluster, node: usize) {
    let disk = Arc::new(RealDisk::open(&cluster.data(node)).unwrap());
    let db = Db::open(disk, Options::default()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let version = Version { time: Clock::limit(now as u64, 0), origin: 1 };
    let mut batch = Batch::new();
    for number in 0..KEYS {
        batch.put(Space::Data, format!("key{number:04}").as_bytes(), version, b"new").unwrap();
    }
    db.write_batch(batch).unwrap();
    db.close().unwrap();
}

fn count_new(cluster: &Cluster, node: usize) -> usize {
    cluster.local(node).iter().filter(|item| item.ends_with(b"\nnew")).count()
}

#[test]
fn a_round_that_is_asked_for_ends_and_all_nodes_are_equal() {
    let cluster = whole(&[]);
    let mut client = cluster.client(0);
    let before = rounds(&mut client);
    assert!(before["current"].is_null() && before["last"].is_null(), "{before}");
    let number = ask(&mut client, "");
    let last = wait_for_round(&mut client, number);
    assert_eq!(last["number"], number, "{last}");
    assert_eq!((&last["equal"], &last["full"]), (&true.into(), &true.into()), "the first: {last}");
    assert_eq!(last["records"].as_u64(), Some(KEYS as u64), "{last}");
    let counts = ["differing", "repaired", "failed", "damaged", "healed"];
    assert!(counts.iter().all(|name| last[name] == 0), "{last}");
    assert!(last["took_ms"].is_u64() && last["began_ms"].as_u64() > Some(1_000_000), "{last}");
    let absent = ["unhealed", "absent", "stopped", "of_records"];
    assert!(absent.iter().all(|name| last[name].is_null()), "{last}");
    let after = ask(&mut client, "?full=false");
    let last = wait_for_round(&mut client, after);
    assert!(after > number && last["full"] == false && last["equal"] == true, "{last}");
    let status = cluster.status(0);
    assert_eq!(status["repair"]["last"], last, "{status}");
    assert!(status["repair"]["last_full_ms"].is_u64() && status["purgeable_bytes"].is_u64());
    let metrics = text(&client.get("/metrics").body());
    for line in [
        "kvorum_repair_rounds_total 2",
        "kvorum_repair_equal 1",
        "kvorum_repair_running 0",
        "kvorum_unhealed_ranges 0",
    ] {
        assert!(metrics.lines().any(|told| told == line), "{line}: {metrics}");
    }
    let other = cluster.status(1);
    assert!(other["repair"]["last"].is_null(), "it drove none: {other}");
}

/// The interval is the shortest that is permitted.
#[test]
fn full_rounds_start_at_their_own_interval() {
    let cluster = Cluster::start(2, &[&BY_HAND[..], &["--repair-full-interval", "10s"]].concat());
    cluster.wait_until_settled();
    wait_until("a full round that nobody asked for", || {
        (0..2).any(|node| cluster.status(node)["repair"]["last"]["full"] == true)
    });
}

#[test]
fn the_repair_command_waits_and_prints_the_result() {
    let cluster = whole(&[]);
    let url = format!("http://{}", cluster.address(1));
    let asked = run(&["repair", "--url", &url]);
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(0), String::new()));
    let said = text(&asked.stdout);
    assert!(said.contains("was requested at") && said.contains("--wait"), "{said}");
    let asked = run(&["repair", "--json", "--url", &url]);
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(0), String::new()));
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(asked["number"].as_u64().is_some_and(|number| number >= 1), "{asked}");
    let done = repair(&cluster, 1, &["--full"]);
    assert_eq!((done.status.code(), errors(&done)), (Some(0), String::new()));
    let said = text(&done.stdout);
    assert!(said.starts_with("full round of ") && said.contains("keys: none differed"), "{said}");
    assert!(said.ends_with("all replicas hold the same\n"), "{said}");
    let done = repair(&cluster, 1, &["--full", "--json"]);
    assert_eq!((done.status.code(), errors(&done)), (Some(0), String::new()));
    let round: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(round["equal"] == true && round["full"] == true, "{round}");
    assert_eq!(text(&done.stdout).lines().count(), 1);
}

/// After a round a replica refuses writes of older records, even of records that it already has.
/// Reads from more replicas than a key has copies must succeed nevertheless.
#[test]
fn keys_are_read_from_more_replicas_than_they_have_copies_after_a_round() {
    let cluster = Cluster::start(5, &BY_HAND);
    cluster.wait_until_settled();
    let put = cluster.client(0).put(&format!("{}&ack=3", key(1)), b"value");
    assert_eq!(put.status, 201);
    let done = repair(&cluster, 0, &["--full"]);
    assert_eq!((done.status.code(), errors(&done)), (Some(0), String::new()));
    for node in 0..5 {
        for quorum in ["ack=3&from=4", "ack=3&from=5", "ack=4&from=5"] {
            let told = cluster.client(node).get(&format!("{}&{quorum}", key(1)));
            assert_eq!((told.status, told.body()), (200, b"value".to_vec()), "{node}: {quorum}");
        }
    }
}

#[test]
fn a_full_round_copies_records_that_only_one_replica_has() {
    let mut cluster = whole(&[]);
    cluster.stop(2);
    write_to_one_node(&cluster, 2);
    cluster.up(2);
    cluster.wait_until_settled();
    assert_eq!((count_new(&cluster, 1), count_new(&cluster, 2)), (0, KEYS));
    // Repeats, because a round leaves writes of the last seconds to hints and to the next round.
    wait_until("a round that compares all of it", || {
        let done = repair(&cluster, 1, &["--full", "--json"]);
        let round: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!((done.status.code(), &round["failed"]), (Some(0), &0.into()), "{round}");
        assert_eq!(round["differing"], round["repaired"], "{round}");
        count_new(&cluster, 1) == KEYS
    });
    let told = &cluster.status(1)["repair"];
    assert_eq!(told["repaired_keys"].as_u64(), Some(KEYS as u64), "{told}");
    assert_eq!((count_new(&cluster, 0), count_new(&cluster, 2)), (KEYS, KEYS));
    let done = repair(&cluster, 0, &["--full"]);
    assert!(text(&done.stdout).contains("keys: none differed"), "{}", text(&done.stdout));
}

/// A round leaves out a node with a full disk. Behind the round's fence, the hints for that node
/// would count as delivered. The limit of file sizes makes the disk of the second node full.
#[test]
fn a_round_leaves_out_a_node_with_a_full_disk_which_keeps_its_hints() {
    let mut cluster = whole(&["--memory", "64MiB"]);
    cluster.stop(1);
    cluster.start_by(1, kvorum_with_limits(FILE_LIMIT));
    cluster.wait_until_settled();
    let mut client = cluster.client(0);
    let value = vec![b'v'; 512 << 10];
    let filler = "/v0/entity?id=filler&ack=3&from=3";
    wait_until("a full disk", || client.put(filler, &value).status != 201);
    let hints = |cluster: &Cluster| {
        let peers = cluster.status(0)["peers"].take();
        let peer = peers.as_array().unwrap().iter().find(|peer| peer["name"] == "n1").unwrap();
        peer["hints"].as_u64().unwrap()
    };
    wait_until("a hint", || hints(&cluster) == 1);
    // After the first round, the fence is above the write's time.
    for _ in 0..2 {
        let done = repair(&cluster, 0, &["--full"]);
        let said = text(&done.stdout);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("not compared with: n1\n"), "{said}");
    }
    assert_eq!(hints(&cluster), 1);
    let pid = Pid::from_raw(cluster.pid(1) as i32);
    let own = getrlimit(Resource::Fsize);
    prlimit(pid, Resource::Fsize, Rlimit { current: own.current, maximum: own.maximum }).unwrap();
    wait_until("the hint's delivery", || hints(&cluster) == 0);
    assert_eq!(cluster.local(1).len(), KEYS + 1);
    wait_until("a round with all nodes", || repair(&cluster, 0, &["--full"]).status.success());
}

/// Inverts bytes in the first block of each table of a node that is down.
fn rot(cluster: &Cluster, node: usize) {
    let mut tables = 0;
    for file in fs::read_dir(cluster.data(node)).unwrap().flatten() {
        if file.path().extension().is_some_and(|extension| extension == "sst") {
            let mut bytes = fs::read(file.path()).unwrap();
            bytes[100..110].iter_mut().for_each(|byte| *byte = !*byte);
            fs::write(file.path(), bytes).unwrap();
            tables += 1;
        }
    }
    assert!(tables > 0, "its store is in tables");
}

/// Damages the tables of the second node, and then runs a full round; returns the command's output.
fn repair_damage(cluster: &mut Cluster) -> Output {
    cluster.stop(1);
    rot(cluster, 1);
    cluster.up(1);
    cluster.wait_until_settled();
    repair(cluster, 0, &["--full"])
}

#[test]
fn damage_on_one_node_is_healed_from_other_replicas() {
    let mut cluster = whole(&[]);
    let done = repair_damage(&mut cluster);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains("damaged ranges of keys: 1 found, 1 healed"), "{said}");
    assert_eq!(cluster.local(1).len(), KEYS);
    assert_eq!(cluster.status(0)["repair"]["healed_ranges"], 1);
    let again = repair(&cluster, 0, &["--full"]);
    assert!(!text(&again.stdout).contains("damaged"), "{}", text(&again.stdout));
}

#[test]
fn concurrent_repair_requests_are_all_answered() {
    let cluster = whole(&[]);
    let mut clients: Vec<_> = (0..4).map(|at| cluster.client(at % 2)).collect();
    let request = "POST /admin/repair?full=true HTTP/1.1\r\nHost: localhost\r\n\r\n";
    clients.iter_mut().for_each(|client| client.send(request));
    let mut numbers = Vec::new();
    for client in &mut clients {
        let asked = client.response();
        assert_eq!(asked.status, 202);
        let number: Value = serde_json::from_slice(&asked.body()).unwrap();
        numbers.push(number["number"].as_u64().unwrap());
    }
    // Each node coordinates at most two rounds: the round that had begun, and the next one.
    assert!(numbers.iter().all(|number| (1..=2).contains(number)), "{numbers:?}");
    for (client, number) in clients.iter_mut().zip(&numbers) {
        let last = wait_for_round(client, *number);
        assert!(last["equal"] == true && last["full"] == true, "{last}");
    }
    for client in &mut clients {
        wait_until("the last round's end", || rounds(client)["current"].is_null());
        let told = rounds(client);
        assert!(told["waiting"].is_null() && told["last"]["number"].as_u64() <= Some(2), "{told}");
    }
}

#[test]
fn a_round_names_a_node_that_stopped_during_it() {
    let mut cluster = whole(&[]);
    let mut client = cluster.client(0);
    cluster.signal(2, Signal::STOP);
    let number = ask(&mut client, "?full=true");
    wait_until("its beginning", || rounds(&mut client)["current"]["number"] == number);
    cluster.kill(2);
    let last = wait_for_round(&mut client, number);
    assert_eq!((&last["absent"][0], &last["equal"]), (&"n2".into(), &false.into()), "{last}");
    let without = repair(&cluster, 1, &[]);
    let said = text(&without.stdout);
    assert_eq!((without.status.code(), errors(&without)), (Some(1), String::new()), "{said}");
    assert!(said.contains("not compared with: n2\n") && !said.contains("hold the same"), "{said}");
    let status = run(&["status", "--url", &format!("http://{}", cluster.address(1))]);
    let said = text(&status.stdout);
    assert!(said.contains("not all replicas are known to hold the same since"), "{said}");
    assert!(
        said.contains("not compared with n2; kvorum repair --wait --url http://127."),
        "{said}"
    );
    assert!(said.contains(" runs another one"), "{said}");
    let metrics = text(&client.get("/metrics").body());
    assert!(metrics.lines().any(|line| line == "kvorum_repair_equal 0"), "{metrics}");
    cluster.up(2);
    cluster.wait_until_settled();
    let whole = repair(&cluster, 1, &[]);
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stdout));
}

#[test]
fn one_node_alone_has_nothing_to_compare_with() {
    let node = Node::start(&[]);
    let refused = node.client().request("POST", "/admin/repair", b"");
    assert_eq!(refused.status, 400);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("this node is alone") && detail.contains("no replicas"), "{detail}");
    let told = rounds(&mut node.client());
    assert!(told["last"].is_null() && told["repaired_keys"] == 0, "{told}");
    let output = run(&["repair", "--url", &format!("http://{}", node.address)]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("this node is alone"), "{said}");
}

#[test]
fn invalid_repair_requests_are_refused() {
    let cluster = Cluster::start(2, &BY_HAND);
    let mut client = cluster.client(0);
    for (query, named) in [
        ("?full=maybe", "full=\"maybe\" is not a boolean"),
        ("?full=", "full=\"\" is not a boolean"),
        ("?full=true&full=true", "duplicate parameter \"full\""),
        ("?fast=true", "unknown parameter \"fast\"; known: full"),
    ] {
        let refused = client.request("POST", &format!("/admin/repair{query}"), b"");
        assert_eq!(refused.status, 400, "{query}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(named), "{query}: {detail}");
    }
    let refused = client.request("DELETE", "/admin/repair", b"");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, POST")));
    assert!(rounds(&mut client)["waiting"].is_null(), "none of them asked for anything");
}

#[test]
fn a_repair_without_the_admin_token_is_refused() {
    const TOKEN: &str = "sixteen letters!";
    let mut command = kvorum();
    command.env("KVORUM_ADMIN_TOKEN", TOKEN);
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    let mut client = node.client();
    let mut ask = |method: &str, header: &str| {
        let head = format!("{method} /admin/repair HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        client.send(head);
        client.response()
    };
    for method in ["GET", "POST"] {
        for header in ["", "Authorization: Bearer sixteen letters\r\n"] {
            let refused = ask(method, header);
            assert_eq!(refused.status, 401, "{method} {header:?}");
            refused.json();
        }
    }
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask("GET", &right).status, 200);
    assert_eq!(ask("POST", &right).status, 400, "it may, but the node is alone");
    let url = format!("http://{}", node.address);
    let output = run(&["repair", "--url", &url]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("admin token"), "{said}");
    let mut command = kvorum();
    command.args(["repair", "--url", &url]).env("KVORUM_ADMIN_TOKEN", TOKEN);
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("this node is alone"), "{said}");
}

#[test]
fn a_setting_that_makes_no_sense_is_named_with_what_would() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("data");
    for (flag, values, fix) in [
        ("--repair-interval", &["", "1", "never", "1.5h", "-1h"][..], "as in 1h"),
        ("--repair-interval", &["0s", "9s", "366d"][..], "10s..365d"),
        ("--repair-full-interval", &["7", "weekly"][..], "as in 1h"),
        ("--repair-full-interval", &["1s", "999d"][..], "10s..365d"),
        ("--repair-share", &["0", "101"][..], "1..100"),
    ] {
        for value in values {
            let flag = format!("{flag}={value}");
            let output = run(&["serve", "--data", path.to_str().unwrap(), &flag]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{flag}: {said}");
            let (name, _) = flag.split_once('=').unwrap();
            assert!(said.contains(name) && said.contains(fix), "{flag}: {said}");
            assert!(said.contains(value), "{flag}: {said}");
        }
    }
    assert!(!path.exists(), "nothing was begun");
}

/// If a round leaves damage, the next incremental round compares everything again.
#[test]
fn damage_that_was_not_healed_is_not_forgotten() {
    let mut cluster = whole(&[]);
    // Repeats rounds until no record is newer than the time up to which the previous round
    // compared.
    wait_until("a round that has nothing to compare", || {
        let done = repair(&cluster, 0, &["--json"]);
        let round: Value = serde_json::from_slice(&done.stdout).unwrap();
        round["records"] == 0
    });
    for node in [1, 2] {
        cluster.stop(node);
        rot(&cluster, node);
        cluster.up(node);
    }
    cluster.wait_until_settled();
    assert_eq!(repair(&cluster, 0, &["--full"]).status.code(), Some(1), "both have lost it");
    let next = repair(&cluster, 0, &[]);
    assert_eq!(next.status.code(), Some(1), "{}", text(&next.stdout));
}

/// After all nodes are proven to have the same data, compactions free the space of deleted data,
/// even if a node was down during the deletes. No deleted key reappears.
#[test]
fn tombstones_are_purged_once_all_replicas_are_proven_equal() {
    let mut cluster = whole(&[]);
    cluster.stop(2);
    let mut client = cluster.client(0);
    for number in 0..KEYS {
        assert_eq!(client.delete(&key(number)).status, 202);
    }
    let deleted = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let done = repair(&cluster, 0, &["--json"]);
    let round: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(round["proven"], false, "one is away: {round}");
    let far = &cluster.status(1)["repair"];
    let (sealed, ready) = (far["sealed_ms"].as_u64(), far["ready_ms"].as_u64());
    assert!(sealed >= Some(deleted) && ready < sealed, "all are sealed, none is ready: {far}");
    cluster.up(2);
    cluster.wait_until_settled();
    // A single round must be enough, however soon it is requested.
    let done = repair(&cluster, 0, &["--json"]);
    let round: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&round["proven"], &round["equal"]), (&true.into(), &true.into()), "{round}");
    let told = cluster.status(0)["repair"]["proven_ms"].as_u64();
    assert!(told.is_some_and(|proven| proven >= deleted), "{told:?} {deleted}");
    for node in 0..3 {
        let far = &cluster.status(node)["repair"];
        assert_eq!((far["sealed_ms"].as_u64(), far["ready_ms"].as_u64()), (told, told), "{far}");
    }
    let status = run(&["status", "--url", &format!("http://{}", cluster.address(1))]);
    let said = text(&status.stdout);
    assert!(said.contains("all replicas held the same") && said.contains("round of n0"), "{said}");
    for node in 0..3 {
        let url = format!("http://{}", cluster.address(node));
        let done = run(&["compact", "--wait", "--json", "--url", &url]);
        assert_eq!(done.status.code(), Some(0), "{}", errors(&done));
        let compaction: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert!(compaction["bytes"].as_u64() < Some(5000), "one value has more: {compaction}");
        for number in 0..KEYS {
            let get = cluster.client(node).get(&format!("{}&ack=1&from=1", key(number)));
            assert_eq!(get.status, 404);
        }
        assert_eq!(cluster.local(node).len(), 0);
    }
}

/// Damaged records without another copy are discarded, so that the other keys of their block become
/// readable again. The round must not report them as healed.
#[test]
fn damaged_keys_without_another_copy_are_named() {
    let mut cluster = whole(&[]);
    for number in 0..KEYS {
        let put = cluster.client(0).put(&format!("/v0/entity?id=z{number}&ack=1&from=1"), b"v");
        assert_eq!(put.status, 201);
    }
    let done = repair_damage(&mut cluster);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("damaged ranges of keys: 1 found, 0 healed\n"), "{said}");
    let named = said.lines().find(|line| line.starts_with("n1: key0000"));
    let named = named.unwrap_or_else(|| panic!("{said}"));
    assert!(named.contains("from=1") && named.contains("from a backup or from clients"), "{said}");
    let metrics = text(&cluster.client(0).get("/metrics").body());
    assert!(metrics.lines().any(|line| line == "kvorum_unhealed_ranges 1"), "{metrics}");
    // Keys that have other copies must be readable again.
    let held = cluster.local(1);
    assert_eq!(held.iter().filter(|item| item.starts_with(b"key")).count(), KEYS);
    let again = repair(&cluster, 0, &["--full"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stdout));
}

/// The round waits for a node that does not answer. The command must report that even without a
/// terminal.
#[test]
fn a_command_that_waits_says_so_and_names_what_it_waits_for() {
    let cluster = whole(&[]);
    cluster.signal(2, Signal::STOP);
    let url = format!("http://{}", cluster.address(0));
    let mut command = kvorum();
    command.args(["repair", "--wait", "--full", "--url", &url]);
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    cluster.signal(2, Signal::CONT);
    assert!(line.contains("waiting until") || line.contains("records compared"), "{line}");
    assert!(line.contains("n2 does not answer n0"), "{line}");
    assert!(waiting.wait().unwrap().code().is_some_and(|code| code <= 1));
}
