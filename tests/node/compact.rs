//! Compactions of a whole store through a node's interfaces: `/admin/compact` and `kvorum compact`.

use std::fs;

use kit::raw::Client;
use serde_json::Value;

use crate::process::{Node, kvorum, run, wait_until};

/// Flags of a small store, in which a few MiB make several tables.
const SMALL: [&str; 6] = ["--memory", "64MiB", "--memtable", "1MiB", "--sync", "never"];

/// Number of keys.
const KEYS: usize = 2000;

fn key(number: usize) -> String {
    format!("/v0/entity?id=key{number:05}")
}

/// Returns a value that does not compress well.
fn value(number: usize, round: u64) -> Vec<u8> {
    let mut state = number as u64 + round * 1_000_003 + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u8
    };
    (0..1000).map(next).collect()
}

fn fill(client: &mut Client, round: u64) {
    for number in 0..KEYS {
        assert_eq!(client.put(&key(number), &value(number, round)).status, 201);
    }
}

fn get_compactions(client: &mut Client) -> Value {
    let told = client.get("/admin/compact");
    assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")));
    serde_json::from_slice(&told.body()).unwrap()
}

/// Requests a compaction; returns its number.
fn ask(client: &mut Client) -> u64 {
    let asked = client.request("POST", "/admin/compact", b"");
    assert_eq!((asked.status, asked.header("content-type")), (202, Some("application/json")));
    let asked: Value = serde_json::from_slice(&asked.body()).unwrap();
    asked["number"].as_u64().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}

#[test]
fn requests_are_served_meanwhile_and_nothing_is_lost() {
    let node = Node::start(&SMALL);
    let mut client = node.client();
    assert_eq!(get_compactions(&mut client), serde_json::json!({}));
    (0..3).for_each(|round| fill(&mut client, round));
    let number = ask(&mut client);
    let mut served = 0;
    let last = loop {
        let at = served % KEYS;
        assert_eq!(client.get(&key(at)).status, 200);
        assert_eq!(client.put(&key(at), &value(at, 3)).status, 201);
        served += 1;
        let told = get_compactions(&mut client);
        if let Some(current) = told.get("current") {
            assert_eq!(current["number"], number, "{told}");
            assert!(current["took_ms"].is_null() && current["began_ms"].is_u64(), "{told}");
            continue;
        }
        break told["last"].clone();
    };
    assert!(last["number"] == number && last["failed"].is_null(), "{last}");
    let count = |name: &str| last[name].as_u64().unwrap();
    assert!(count("records") >= KEYS as u64 && count("records") == count("of_records"), "{last}");
    // Of three values of each key one remains, and so do the values written during the compaction.
    assert!(count("bytes") < count("bytes_before") + (served * 1100) as u64, "{last}");
    fill(&mut client, 4);
    for number in 0..KEYS {
        assert_eq!(client.get(&key(number)).body(), value(number, 4));
    }
    node.stop();
}

#[test]
fn what_was_deleted_takes_no_space_afterwards() {
    let node = Node::start(&SMALL);
    let mut client = node.client();
    fill(&mut client, 0);
    for number in 0..KEYS {
        assert_eq!(client.delete(&key(number)).status, 202);
    }
    let done = run(&["compact", "--wait", "--url", &url(&node)]);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
    let said = text(&done.stdout);
    assert!(said.starts_with("compacted in ") && said.ends_with(" now\n"), "{said}");
    let last = get_compactions(&mut client)["last"].take();
    assert!(last["bytes"].as_u64().unwrap() < 100_000, "{last}");
    let status: Value = serde_json::from_slice(&client.get("/v0/status").body()).unwrap();
    assert_eq!(status["purgeable_bytes"], 0, "{status}");
    assert_eq!(client.get("/v0/entities?start=%00").body(), b"");
}

#[test]
fn the_compact_command_prints_the_result() {
    let node = Node::start(&SMALL);
    let asked = run(&["compact", "--url", &url(&node)]);
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(0), String::new()));
    let said = text(&asked.stdout);
    assert!(said.starts_with("compaction 1 was requested at http://"), "{said}");
    let asked = run(&["compact", "--json", "--url", &url(&node)]);
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(0), String::new()));
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(asked["number"].as_u64().is_some_and(|number| number >= 1), "{asked}");
    let done = run(&["compact", "--wait", "--json", "--url", &url(&node)]);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
    let last: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(last["took_ms"].is_u64() && last["failed"].is_null(), "{last}");
    assert_eq!(text(&done.stdout).lines().count(), 1);
    // A single table remains, which has only the node's own state.
    let again = run(&["compact", "--wait", "--url", &url(&node)]);
    let said = text(&again.stdout);
    assert!(again.status.code() == Some(0) && said.lines().count() == 1, "{said}");
}

#[test]
fn a_request_during_a_compaction_gets_the_running_one() {
    let node = Node::start(&SMALL);
    let mut clients: Vec<_> = (0..4).map(|_| node.client()).collect();
    (0..3).for_each(|round| fill(&mut clients[0], round));
    let request = "POST /admin/compact HTTP/1.1\r\nHost: localhost\r\n\r\n";
    clients.iter_mut().for_each(|client| client.send(request));
    let mut most = 0;
    for client in &mut clients {
        let asked = client.response();
        let asked: Value = serde_json::from_slice(&asked.body()).unwrap();
        most = most.max(asked["number"].as_u64().unwrap());
    }
    assert!((1..=4).contains(&most), "{most}");
    wait_until("the end of the last one", || {
        get_compactions(&mut clients[0])["last"]["number"] == most
    });
    assert!(get_compactions(&mut clients[1])["current"].is_null());
}

#[test]
fn a_store_that_has_failed_says_why() {
    let node = Node::start(&SMALL);
    let mut client = node.client();
    fill(&mut client, 0);
    let data = node.data.path().join("data");
    fs::rename(&data, node.data.path().join("elsewhere")).unwrap();
    wait_until("noticing it", || client.get("/readyz").status == 503);
    let failed = run(&["compact", "--wait", "--url", &url(&node)]);
    let said = text(&failed.stderr);
    assert_eq!((failed.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("the compaction ended early: "), "{said}");
    assert_eq!(text(&failed.stdout), "");
    let failed = run(&["compact", "--wait", "--json", "--url", &url(&node)]);
    let last: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert!(failed.status.code() == Some(1) && last["failed"].is_string(), "{last}");
    let gone = url(&node);
    drop(node);
    let refused = run(&["compact", "--wait", "--url", &gone]);
    let said = text(&refused.stderr);
    assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
}

#[test]
fn unauthorized_and_invalid_compaction_requests_are_refused() {
    const TOKEN: &str = "sixteen letters!";
    let mut command = kvorum();
    command.env("KVORUM_ADMIN_TOKEN", TOKEN);
    let node = Node::start_with(command, tempfile::tempdir().unwrap(), &[]);
    let mut client = node.client();
    let mut ask = |method: &str, query: &str, header: &str| {
        let target = format!("/admin/compact{query}");
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"));
        client.response()
    };
    for method in ["GET", "POST"] {
        for header in ["", "Authorization: Bearer sixteen letters\r\n"] {
            assert_eq!(ask(method, "", header).status, 401, "{method} {header:?}");
        }
    }
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let refused = ask("POST", "?level=1", &right);
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 400);
    assert!(detail.contains("unknown parameter \"level\"; known: none"), "{detail}");
    let refused = ask("PUT", "", &format!("{right}Content-Length: 0\r\n"));
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, POST")));
    let told: Value = serde_json::from_slice(&ask("GET", "", &right).body()).unwrap();
    assert_eq!(told, serde_json::json!({}), "none of them asked for anything");
    let refused = run(&["compact", "--url", &url(&node)]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("admin token"), "{said}");
    let mut command = kvorum();
    command.args(["compact", "--wait", "--url", &url(&node)]).env("KVORUM_ADMIN_TOKEN", TOKEN);
    assert_eq!(command.output().unwrap().status.code(), Some(0));
}
