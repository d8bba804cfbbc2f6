//! Storage quotas of prefixes: refused writes and repeated writes, on one node and on several,
//! through any node, and after restarts.

use kit::raw::Client;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::conditional::ask;
use crate::moves::{apply_change, text};
use crate::process::{Node, run, wait_until};

/// Returns the quota of a prefix, as the client's node reports it; null if there is none.
fn quota(client: &mut Client, prefix: &str) -> Value {
    let list: Value = serde_json::from_slice(&client.get("/admin/quotas").body()).unwrap();
    let quotas = list["quotas"].as_array().unwrap();
    quotas.iter().find(|quota| quota["prefix"] == prefix).cloned().unwrap_or_default()
}

fn state(client: &mut Client, prefix: &str) -> String {
    quota(client, prefix)["state"].as_str().unwrap_or("none").to_owned()
}

fn set(client: &mut Client, query: &str) -> Value {
    let set = client.request("POST", &format!("/admin/quotas?{query}"), b"");
    assert_eq!(set.status, 200, "{}", text(&set.body()));
    serde_json::from_slice(&set.body()).unwrap()
}

fn metric(client: &mut Client, line: &str) -> Option<u64> {
    let metrics = text(&client.get("/metrics").body());
    let value = metrics.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

#[test]
fn a_full_prefix_refuses_what_is_stored_there_and_nothing_else() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    let set = set(client, "prefix=a%2F&soft=4096&hard=8192");
    assert_eq!((&set["soft_bytes"], &set["hard_bytes"]), (&4096.into(), &8192.into()));
    wait_until("it is counted", || state(client, "a/") == "below");
    // Each item counts 1 KiB: 3 bytes of the key and 1,021 bytes of the value.
    let value = vec![b'v'; 1021];
    let put =
        |client: &mut Client, n: usize| client.put(&format!("/v0/entity?id=a/{n}"), &value).status;
    assert_eq!((0..5).map(|n| put(client, n)).collect::<Vec<_>>(), [201; 5]);
    assert_eq!(state(client, "a/"), "above-soft", "at once");
    wait_until("the sum is right", || quota(client, "a/")["stored_bytes"] == 5 * 1024);
    // An overwritten key counts once.
    (0..40).for_each(|_| assert_eq!(put(client, 1), 201));
    assert_eq!((5..8).map(|n| put(client, n)).collect::<Vec<_>>(), [201; 3]);
    assert_eq!(state(client, "a/"), "full", "at once");
    wait_until("the sum is right", || quota(client, "a/")["stored_bytes"] == 8 * 1024);

    let refused = client.put("/v0/entity?id=a/0", b"x");
    let problem = refused.json();
    assert_eq!((refused.status, &problem["type"]), (507, &"quota-reached".into()));
    assert_eq!(problem["outcome"], "none");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("\"a/\"") && detail.contains("8192"), "{detail}");
    assert_eq!(client.request("POST", "/v0/entity?id=a/n&add=1", b"").status, 507);
    client.send(
        "PUT /v0/entity?id=a/9 HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: *\r\n\
                 Content-Length: 1\r\n\r\nx",
    );
    assert_eq!(client.response().status, 507);
    let unknown = client.put("/v0/entity?id=a/0&only_this_route=1", b"x");
    assert_eq!(unknown.status, 400, "what can't be parsed is not admitted");
    assert_eq!(client.get("/v0/entity?id=a/0").body(), value, "reads go on");
    assert_eq!(client.put("/v0/entity?id=a", b"x").status, 201, "the key has not that prefix");
    let labels = |name: &str| format!("kvorum_{name}{{prefix=\"a/\"}}");
    assert_eq!(metric(client, &labels("quota_refused_writes_total")), Some(3));
    assert_eq!(metric(client, &labels("quota_stored_bytes")), Some(8192));
    assert_eq!(metric(client, &labels("quota_hard_bytes")), Some(8192));

    // Deletions free the quota for further writes.
    assert_eq!(client.delete("/v0/entity?id=a/0").status, 202);
    wait_until("there is room", || put(client, 9) == 201);
    wait_until("it is full", || state(client, "a/") == "full");
    // A larger limit permits further writes, and an expiry frees the quota.
    assert_eq!(set_status(client, "prefix=a%2F&hard=65536"), 200);
    assert_eq!(client.put("/v0/entity?id=a/short&ttl=1s", &vec![1; 128 << 10]).status, 201);
    wait_until("it has expired", || state(client, "a/") == "below");
    // Without the quota, writes are accepted again.
    assert_eq!(set_status(client, "prefix=a%2F&hard=1"), 200);
    wait_until("it is full", || put(client, 9) == 507);
    assert_eq!(client.request("POST", "/admin/quotas/remove?prefix=a/", b"").status, 200);
    wait_until("it is gone", || put(client, 9) == 201);
    assert_eq!(metric(client, &labels("quota_stored_bytes")), None);
}

fn set_status(client: &mut Client, query: &str) -> u16 {
    client.request("POST", &format!("/admin/quotas?{query}"), b"").status
}

#[test]
fn every_node_enforces_a_quota_also_after_a_restart() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let hard = ["quota", "set", "a/", "--hard", "100KiB"];
    let command = |cluster: &Cluster, node: usize, args: &[&str]| {
        let url = format!("http://{}", cluster.address(node));
        let said = run(&[args, &["--url", &url]].concat());
        assert!(said.status.success(), "{}", text(&said.stderr));
        text(&said.stdout)
    };
    assert_eq!(command(&cluster, 0, &hard), "set: \"a/\"  hard 100.00 KiB\n");
    let put = |client: &mut Client, n: usize| {
        client.put(&format!("/v0/entity?id=a/{n:03}"), &[7; 1019]).status
    };
    let mut client = cluster.client(1);
    let stored = (0..100).map(|n| put(&mut client, n));
    assert_eq!(stored.collect::<Vec<_>>(), [201; 100]);
    // Each key counts once, although three nodes store it.
    for node in 0..3 {
        let client = &mut cluster.client(node);
        wait_until("it is full everywhere", || {
            state(client, "a/") == "full" && quota(client, "a/")["stored_bytes"] == 100 * 1024
        });
        assert_eq!(put(client, 0), 507, "node {node}");
    }
    for node in 0..3 {
        cluster.kill(node);
        cluster.up(node);
    }
    cluster.wait_until_settled();
    for node in 0..3 {
        let client = &mut cluster.client(node);
        wait_until("it is full again", || put(client, 0) == 507);
    }
    let list = command(&cluster, 2, &["quota", "list"]);
    assert!(list.starts_with("\"a/\"  hard 100.00 KiB  about 100.00 KiB stored: full"), "{list}");
    // The quota survives the layouts of a membership change.
    apply_change(&cluster, 0, &["--weight", "n2=2"]);
    let removed = command(&cluster, 1, &["quota", "remove", "a/"]);
    assert_eq!(removed, "removed: \"a/\"  hard 100.00 KiB\n");
    for node in 0..3 {
        let client = &mut cluster.client(node);
        wait_until("it is gone everywhere", || put(client, 0) == 201);
    }
    assert_eq!(command(&cluster, 0, &["quota", "list"]), "there are no quotas\n");
}

/// Length in bytes of values that fill a quota quickly.
const LONG: usize = 64 << 10;

/// Maximum number of bytes by which the writes through each node may exceed the hard limit.
const OVERRUN: u64 = 1 << 20;

/// Sets a quota, and waits until all nodes have counted the stored bytes.
fn set_quota_and_wait(cluster: &Cluster, nodes: usize, hard: u64) {
    set(&mut cluster.client(0), &format!("prefix=a%2F&hard={hard}"));
    for node in 0..nodes {
        let client = &mut cluster.client(node);
        wait_until("it is counted", || state(client, "a/") == "below");
    }
}

/// Writes keys until all writers are refused. Each writer has its own connection to one of the
/// nodes. A `steady` writer writes slowly. Returns the bytes of the acknowledged writes.
fn write_until_full(cluster: &Cluster, nodes: usize, writers: usize, steady: bool) -> u64 {
    let write = |writer: usize| {
        let mut client = cluster.client(writer % nodes);
        let value = vec![b'v'; LONG];
        for n in 0u64.. {
            assert!(n < 1000, "nobody was refused");
            let key = format!("/v0/entity?id=a/{steady}-{writer}-{n:04}");
            match client.put(&key, &value).status {
                201 => {}
                507 => return n * LONG as u64,
                other => panic!("{other}"),
            }
            if steady {
                // Slows the writer down to the rate of a client that reads the stored bytes between
                // two writes.
                state(&mut client, "a/");
            }
        }
        unreachable!("there are as many numbers as it takes")
    };
    std::thread::scope(|scope| {
        let writers = (0..writers).map(|writer| scope.spawn(move || write(writer)));
        let writers: Vec<_> = writers.collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    })
}

fn a_hard_limit_stops_who_writes_fast(nodes: usize) {
    let hard = 8 << 20;
    let cluster = Cluster::start(nodes, &[]);
    cluster.wait_until_settled();
    set_quota_and_wait(&cluster, nodes, hard);
    let burst = write_until_full(&cluster, nodes, 2 * nodes, false);
    let most = hard + nodes as u64 * OVERRUN;
    assert!(burst <= most, "{burst} of {hard} were stored");
    assert!(burst >= hard / 2, "{burst} of {hard}: others were refused long before");
    // The nodes must also report the usage without delay.
    for node in 0..nodes {
        let shown = quota(&mut cluster.client(node), "a/")["stored_bytes"].as_u64().unwrap();
        assert!(shown >= hard / 2, "node {node} shows {shown} of {burst}");
    }
    // Repeats the test with other keys, and with clients that write slowly.
    let again = 2 * hard;
    set(&mut cluster.client(0), &format!("prefix=a%2F&hard={again}"));
    for node in 0..nodes {
        let client = &mut cluster.client(node);
        wait_until("it has the new limit", || quota(client, "a/")["hard_bytes"] == again);
        wait_until("there is room", || state(client, "a/") == "below");
    }
    let steady = write_until_full(&cluster, nodes, nodes, true);
    let most = again + nodes as u64 * OVERRUN;
    assert!(burst + steady <= most, "{burst} and {steady} of {again} were stored");
}

#[test]
fn a_hard_limit_stops_who_writes_fast_on_one_node() {
    a_hard_limit_stops_who_writes_fast(1);
}

#[test]
fn a_hard_limit_stops_who_writes_fast_on_three_nodes() {
    a_hard_limit_stops_who_writes_fast(3);
}

#[test]
fn a_hard_limit_stops_who_writes_fast_on_five_nodes() {
    a_hard_limit_stops_who_writes_fast(5);
}

/// An overwrite counts only for the growth of the value. A client that stays below its quota is not
/// refused, however often it overwrites, or deletes and writes again.
fn who_stays_below_is_not_refused(nodes: usize) {
    let cluster = Cluster::start(nodes, &[]);
    cluster.wait_until_settled();
    set_quota_and_wait(&cluster, nodes, 2 << 20);
    let write = |writer: usize| {
        let mut client = cluster.client(writer);
        let value = vec![b'v'; LONG];
        for n in 0..120 {
            let key = format!("/v0/entity?id=a/{writer}-{}", n % 6 / nodes.min(3));
            assert_eq!(client.put(&key, &value).status, 201, "write {n} of writer {writer}");
            if n % 3 == 2 {
                assert_eq!(client.delete(&key).status, 202);
            }
        }
    };
    let write = &write;
    std::thread::scope(|scope| {
        (0..nodes).for_each(|writer| drop(scope.spawn(move || write(writer))))
    });
}

#[test]
fn who_stays_below_a_hard_limit_is_not_refused_on_one_node() {
    who_stays_below_is_not_refused(1);
}

#[test]
fn who_stays_below_a_hard_limit_is_not_refused_on_three_nodes() {
    who_stays_below_is_not_refused(3);
}

#[test]
fn who_stays_below_a_hard_limit_is_not_refused_on_five_nodes() {
    who_stays_below_is_not_refused(5);
}

/// A write that is repeated with its idempotency key gets the first answer, whether the key's
/// record or only the replicas still have the outcome. The answer must never claim that the write
/// was not done.
#[test]
fn a_repeated_write_gets_its_first_answer_although_the_quota_is_full() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let word = |word: &str| format!("Idempotency-Key: {word}\r\n");
    let mut client = cluster.client(0);
    let value = "v".repeat(200);
    let put = ask(&mut client, "PUT", "id=a/k", &word("put"), &value);
    let add = ask(&mut client, "POST", "id=a/n&add=5", &word("add"), "");
    assert_eq!([put.status, add.status], [201, 200]);
    for number in 0..9 {
        let other = word(&format!("other-{number}"));
        assert_eq!(ask(&mut client, "POST", "id=a/n&add=1", &other, "").status, 200);
    }
    set(&mut client, "prefix=a%2F&hard=100");
    for node in 0..3 {
        let client = &mut cluster.client(node);
        wait_until("it is full", || state(client, "a/") == "full");
        let again = ask(client, "PUT", "id=a/k", &word("put"), &value);
        assert_eq!((again.status, again.header("etag")), (201, put.header("etag")));
        let again = ask(client, "POST", "id=a/n&add=5", &word("add"), "");
        assert_eq!(
            (again.status, again.body(), again.header("etag")),
            (200, b"5".to_vec(), add.header("etag"))
        );
        for (method, target) in [("PUT", "id=a/k"), ("POST", "id=a/n&add=5")] {
            let refused = ask(client, method, target, &word(&format!("new-{node}")), "");
            let problem = refused.json();
            assert_eq!((refused.status, &problem["type"]), (507, &"quota-reached".into()));
            assert_eq!(problem["outcome"], "none");
        }
        let used = ask(client, "PUT", "id=a/n", &word("add"), "");
        assert_eq!((used.status, &used.json()["outcome"]), (422, &"none".into()));
        // Only the two new writes count as refused. The repeated writes, which got the first
        // answer, do not.
        assert_eq!(quota(client, "a/")["refused_writes"], 2, "node {node}");
    }
    assert_eq!(client.get("/v0/entity?id=a/n").body(), b"14");
    assert_eq!(ask(&mut client, "DELETE", "id=a/n", &word("delete"), "").status, 202);
}

#[test]
fn invalid_quotas_are_refused() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    for (query, status, said) in [
        ("prefix=a", 409, "needs a soft limit or a hard one"),
        ("prefix=a&soft=2&hard=1", 409, "above the hard one"),
        ("prefix=a&hard=0", 400, "not a valid number of bytes"),
        ("prefix=a&hard=much", 400, "hard: it is not a valid number"),
        ("prefix=%zz&hard=1", 400, "prefix"),
        ("prefix=a&hard=1&ttl=1s", 400, "unknown parameter \"ttl\""),
    ] {
        let refused = client.request("POST", &format!("/admin/quotas?{query}"), b"");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, status, "{query}: {detail}");
        assert!(detail.contains(said), "{query}: {detail}");
    }
    let long = format!("prefix={}&hard=1", "p".repeat(129));
    assert_eq!(set_status(client, &long), 409);
    let unknown = client.request("POST", "/admin/quotas/remove?prefix=a", b"");
    assert_eq!((unknown.status, &unknown.json()["type"]), (409, &"quota-refused".into()));
    for n in 0..64 {
        assert_eq!(set_status(client, &format!("prefix={n}&soft=1")), 200);
    }
    assert_eq!(set_status(client, "prefix=x&soft=1"), 409, "there are as many as there can be");
    let none = run(&["quota", "set", "a", "--url", "http://127.0.0.1:1"]);
    assert!(text(&none.stderr).contains("--soft"), "{}", text(&none.stderr));
}
