//! More clients than client slots: peers, probes and operators are admitted, idle clients are
//! disconnected to free their slots, and a client that finds no free slot gets 503.

use kit::raw::Client;

use crate::cluster::Cluster;
use crate::process::{Node, wait_until};

const PLACES: usize = 6;

/// Returns true if a new client is admitted and served.
fn is_served(node: &Node) -> bool {
    let mut client = node.client();
    client.put("/v0/entity?id=new", b"v").status == 201
}

fn evicted_connections(client: &mut Client) -> u64 {
    let text = String::from_utf8(client.get("/metrics").body()).unwrap();
    let line = text.lines().find(|line| line.starts_with("kvorum_connections_evicted_total "));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn node() -> Node {
    let places = PLACES.to_string();
    Node::start(&["--sync", "never", "--connections", &places, "--loops", "2"])
}

/// Connects as many clients as there are slots, each in the middle of a request.
fn busy(node: &Node) -> Vec<Client> {
    let mut clients: Vec<_> = (0..PLACES).map(|_| node.client()).collect();
    for client in &mut clients {
        assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    }
    for client in &mut clients {
        client
            .send("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nv");
    }
    clients
}

#[test]
fn probes_are_answered_when_all_places_are_taken() {
    let node = node();
    let mut busy = busy(&node);
    for path in ["/healthz", "/readyz", "/metrics", "/v0/status", "/ui"] {
        let answer = node.client().get(path);
        assert_eq!((answer.status, answer.closes()), (200, true), "{path}");
    }
    let mut client = node.client();
    let refused = client.put("/v0/entity?id=k", b"v");
    assert_eq!((refused.status, refused.closes()), (503, true));
    assert_eq!(
        (refused.header("retry-after"), &refused.json()["outcome"]),
        (Some("1"), &"none".into())
    );
    assert!(client.is_closed());
    for client in &mut busy {
        client.send("12345678");
        assert_eq!(client.response().status, 201, "who was served goes on being served");
    }
    drop(busy);
    wait_until("a place", || is_served(&node));
}

#[test]
fn silent_reserve_clients_make_room_for_probes() {
    let node = node();
    let _busy = busy(&node);
    let _silent: Vec<_> = (0..1000)
        .map(|number| {
            let mut client = node.client();
            if number % 2 == 0 {
                client.send("GET /healthz HTTP/1.1\r\nX: ");
            }
            client
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(node.client().get("/healthz").status, 200);
    }
}

#[test]
fn the_client_that_was_idle_for_longest_makes_room() {
    let node = node();
    let mut clients: Vec<_> = (0..PLACES).map(|_| node.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/v0/entity?id=k").status, 404);
    }
    let mut idle = clients.pop().unwrap();
    wait_until("room for a new one", || {
        for client in &mut clients {
            assert_eq!(client.get("/v0/entity?id=k").status, 404, "nobody else goes");
        }
        is_served(&node)
    });
    assert!(idle.is_closed());
    assert_eq!(evicted_connections(&mut clients[0]), 1);
}

#[test]
fn idle_clients_keep_out_neither_new_ones_nor_peers() {
    let places = PLACES.to_string();
    let mut cluster = Cluster::start(3, &["--sync", "never", "--connections", &places]);
    cluster.wait_until_settled();
    let crowd = |node| (0..4 * PLACES).map(|_| cluster.client(node)).collect::<Vec<_>>();
    let crowds: Vec<_> = (0..3).map(crowd).collect();
    cluster.kill(2);
    cluster.up(2);
    for node in 0..3 {
        wait_until("all three", || {
            cluster.client(node).put("/v0/entity?id=k&ack=3&from=3", b"v").status == 201
        });
        assert_eq!(cluster.client(node).get("/healthz").status, 200);
    }
    drop(crowds);
}
