//! Leases: no conditional write succeeds because of an expired lease before the lease expires by
//! the wall clock, even after the kill of a node whose hybrid clock then starts ahead of the wall
//! clock. Fencing tokens, which protect against a holder whose lease has expired, grow from one
//! holder to the next.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kit::raw::{Client, Response};

use crate::cluster::Cluster;
use crate::process::{Node, TIMEOUT, kvorum, pause_between_requests, wait_until};

/// Number of leases in a round.
const LEASES: u64 = 24;

/// Milliseconds between the starts of two leases. All starts together take as long as one lease, so
/// that leases end one after another after the node has restarted, whenever it does.
const APART_MS: u64 = 80;

/// Duration of a lease.
const TTL: &str = "2s";

const TAKE: &str = "If-None-Match: *\r\n";

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn put(client: &mut Client, query: &str, headers: &str) -> Response {
    client.send(format!(
        "PUT /v0/entity?{query} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 1\r\n\r\nx"
    ));
    client.response()
}

/// Returns the expiry of the value in milliseconds since 1970.
fn expires(response: &Response) -> u64 {
    let header = response.header("kvorum-expires").expect("a lease tells when it expires");
    header.replace('.', "").parse().unwrap()
}

/// Acquires `LEASES` leases one after another; returns the expiry of each key.
fn take_all(client: &mut Client, round: usize) -> BTreeMap<String, u64> {
    let begun = now_ms();
    let take = |number| {
        while now_ms() < begun + number * APART_MS {
            pause_between_requests();
        }
        let key = format!("lease-{round}-{number}");
        let taken = put(client, &format!("id={key}&ttl={TTL}"), TAKE);
        assert_eq!(taken.status, 201, "{key}");
        (key, expires(&taken))
    };
    (0..LEASES).map(take).collect()
}

/// Kills a node while leases are held, and restarts it at once. Then contenders try to acquire the
/// leases through all nodes, and must not succeed before the leases expire.
fn no_lease_ends_early(args: &[&str], rounds: usize) {
    let mut cluster = Cluster::start(3, args);
    cluster.wait_until_settled();
    for round in 0..rounds {
        let node = round % 3;
        let mut held = take_all(&mut cluster.client(node), round);
        cluster.kill(node);
        cluster.up(node);
        let mut contenders = [0, 1, 2].map(|other| cluster.client((node + other) % 3));
        let until = Instant::now() + TIMEOUT;
        while !held.is_empty() {
            assert!(Instant::now() < until, "they end: {held:?}");
            for contender in &mut contenders {
                held.retain(|key, expires| {
                    let answer = put(contender, &format!("id={key}"), TAKE);
                    // Before the lease expires, no other holder may get it. Any other outcome is
                    // permitted.
                    let is_free = answer.status == 201;
                    let early = expires.saturating_sub(now_ms());
                    assert!(!is_free || early == 0, "{key} ended {early} ms early");
                    !is_free
                });
            }
            pause_between_requests();
        }
    }
}

#[test]
fn no_lease_ends_early_after_a_kill() {
    no_lease_ends_early(&[], 4);
}

#[test]
fn no_lease_ends_early_after_a_kill_though_clocks_may_differ_much() {
    no_lease_ends_early(&["--max-clock-skew", "5s"], 2);
}

/// The holder can renew a lease until the lease expires by the wall clock, even at a node whose
/// hybrid clock is past the expiry.
#[test]
fn a_lease_is_renewed_until_its_time_after_a_kill() {
    let mut cluster = Cluster::start(3, &["--max-clock-skew", "5s"]);
    cluster.wait_until_settled();
    let taken = put(&mut cluster.client(0), "id=k&ttl=30s", TAKE);
    cluster.kill(0);
    cluster.up(0);
    let mut tag = taken.header("etag").unwrap().to_owned();
    let mut client = cluster.client(0);
    let (mut renewals, begun) = (0, Instant::now());
    while renewals < 20 {
        assert!(begun.elapsed() < Duration::from_secs(25), "renewed {renewals} times");
        let renewed = put(&mut client, "id=k&ttl=2s", &format!("If-Match: {tag}\r\n"));
        match renewed.status {
            201 => (renewals, tag) = (renewals + 1, renewed.header("etag").unwrap().to_owned()),
            503 | 504 => {}
            other => panic!("{other} after {renewals} renewals"),
        }
    }
}

/// Returns the fencing token in an answer's header.
fn fence(response: &Response) -> String {
    let fence = response.header("kvorum-fence").expect("a conditional write is fenced").to_owned();
    let is_hex = fence.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    assert!(fence.len() == 16 && is_hex, "{fence}");
    fence
}

/// Checks that fencing tokens grow from one holder to the next, however the previous holder lost
/// the lease.
fn fences_grow(mut ask: impl FnMut(usize, &str, &str, &str) -> Response) {
    let mut last = String::new();
    let mut grows = |response: &Response, why: &str| {
        assert_eq!(response.status, 201, "{why}");
        let fence = fence(response);
        assert!(fence > last, "{why}: {fence} after {last}");
        last = fence;
    };
    for turn in 0..3 {
        let taken = ask(turn, "PUT", "id=k&ttl=1s", TAKE);
        grows(&taken, "taken");
        let tag = format!("If-Match: {}\r\n", taken.header("etag").unwrap());
        let renewed = ask(turn + 1, "PUT", "id=k&ttl=1s", &tag);
        grows(&renewed, "renewed");
        wait_until("its end", || {
            let next = ask(turn, "PUT", "id=k&ttl=1h", TAKE);
            if next.status == 201 {
                grows(&next, "after it expired");
            }
            next.status == 201
        });
        assert_eq!(ask(turn, "DELETE", "id=k", "If-Match: *\r\n").status, 202);
        grows(&ask(turn + 1, "PUT", "id=k&ttl=1h", TAKE), "after it was deleted");
        let plain = ask(turn, "PUT", "id=k", "");
        assert_eq!((plain.status, plain.header("kvorum-fence")), (201, None));
        grows(&ask(turn + 1, "PUT", "id=k&ttl=1h", "If-Match: *\r\n"), "after a plain write");
        assert_eq!(ask(turn, "DELETE", "id=k", "").status, 202);
    }
    let unmet = ask(0, "PUT", "id=k", "If-Match: *\r\n");
    assert_eq!((unmet.status, unmet.header("kvorum-fence")), (412, None));
}

fn send_request(client: &mut Client, method: &str, query: &str, headers: &str) -> Response {
    let length = usize::from(method == "PUT");
    client.send(format!(
        "{method} /v0/entity?{query} HTTP/1.1\r\nHost: localhost\r\n{headers}\
         Content-Length: {length}\r\n\r\n{}",
        &"x"[..length]
    ));
    client.response()
}

#[test]
fn a_fence_grows_from_one_holder_to_the_next_on_one_node() {
    let node = Node::start(&[]);
    let mut client = node.client();
    fences_grow(|_, method, query, headers| send_request(&mut client, method, query, headers));
    let before = fence(&put(&mut client, "id=l", TAKE));
    let node = Node::start_with(kvorum(), node.kill(), &[]);
    let after = fence(&put(&mut node.client(), "id=l", "If-Match: *\r\n"));
    assert!(before < after, "{before} {after}");
}

#[test]
fn a_fence_grows_from_one_holder_to_the_next_on_three_nodes() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut clients = [0, 1, 2].map(|node| cluster.client(node));
    fences_grow(|turn, method, query, headers| {
        send_request(&mut clients[turn % 3], method, query, headers)
    });
    let before = fence(&put(&mut clients[0], "id=l", TAKE));
    for node in 0..3 {
        cluster.kill(node);
        let mut last = None;
        wait_until("the other two", || {
            let next = put(&mut cluster.client((node + 1) % 3), "id=l", "If-Match: *\r\n");
            last = (next.status == 201).then(|| fence(&next));
            last.is_some()
        });
        assert!(last.is_some_and(|last| before < last));
        cluster.up(node);
        cluster.wait_until_settled();
    }
}

/// A repeated request gets a fencing token that is at least the first one, and less than the next
/// holder's.
#[test]
fn a_fence_is_told_again_to_who_has_lost_the_answer() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let word = format!("{TAKE}Idempotency-Key: word\r\n");
    let first = fence(&put(&mut cluster.client(0), "id=k", &word));
    let again = fence(&put(&mut cluster.client(1), "id=k", &word));
    assert!(first <= again, "{first} {again}");
    let next = fence(&put(&mut cluster.client(2), "id=k", "If-Match: *\r\n"));
    assert!(again < next, "{again} {next}");
    let late = put(&mut cluster.client(0), "id=k", &word);
    assert_eq!((late.status, late.header("kvorum-fence")), (201, None), "it is another's by now");
}
