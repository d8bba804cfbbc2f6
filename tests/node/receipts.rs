//! Receipts: the replicas that acknowledged a write, on one node and on three.

use std::collections::BTreeSet;

use kit::raw::{Client, Response};

use crate::cluster::Cluster;
use crate::process::{Node, run};

fn ask(client: &mut Client, method: &str, query: &str, headers: &str) -> Response {
    let body = if method == "POST" { "" } else { "7" };
    let length = body.len();
    client.send(format!(
        "{method} /v0/entity?{query} HTTP/1.1\r\nHost: localhost\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    client.response()
}

/// Every kind of write that can have a receipt: method, query, condition, status.
const WRITES: [(&str, &str, &str, u16); 5] = [
    ("PUT", "id=k", "", 201),
    ("DELETE", "id=k", "", 202),
    ("PUT", "id=k", "If-None-Match: *\r\n", 201),
    ("POST", "id=k&add=1", "", 200),
    ("DELETE", "id=k", "If-Match: *\r\n", 202),
];

fn is_conditional((method, _, condition, _): (&str, &str, &str, u16)) -> bool {
    method == "POST" || !condition.is_empty()
}

fn receipt(answer: &Response) -> String {
    answer.header("kvorum-receipt").expect("it has a receipt").to_owned()
}

/// Returns the names in a receipt.
fn names(receipt: &str) -> BTreeSet<String> {
    let names = receipt.split_once(", by=(").unwrap().1.strip_suffix(')').unwrap();
    names.split(' ').map(|name| name.trim_matches('"').to_owned()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn only_writes_that_request_a_receipt_get_a_receipt() {
    for sync in ["always", "interval", "never"] {
        let node = Node::start(&["--sync", sync]);
        let name = format!("http://{}", node.address);
        let mut client = node.client();
        for write @ (method, query, condition, status) in WRITES {
            let answer = ask(&mut client, method, &format!("{query}&receipt=true"), condition);
            assert_eq!(answer.status, status, "{write:?}");
            let receipt = receipt(&answer);
            let version = receipt.strip_prefix("version=").unwrap().split(',').next().unwrap();
            if let Some(etag) = answer.header("etag") {
                assert_eq!(version, etag, "{write:?}");
            }
            let steps = version.split('-').count() > 2;
            assert_eq!(steps, is_conditional(write), "{write:?}: {version}");
            let sync = if is_conditional(write) { "always" } else { sync };
            let rest = format!(", epoch=1, ack=1, from=1, sync={sync}, by=(\"{name}\")");
            assert_eq!(receipt, format!("version={version}{rest}"), "{write:?}");
        }
        for (method, query, condition, status) in WRITES {
            let asked = format!("{query}&receipt=false");
            for query in [query, &asked] {
                client.put("/v0/entity?id=k", b"7");
                if condition.contains("None") {
                    client.delete("/v0/entity?id=k");
                }
                let answer = ask(&mut client, method, query, condition);
                assert_eq!(answer.status, status, "{method} {query}");
                assert_eq!(answer.header("kvorum-receipt"), None, "{method} {query}");
            }
        }
    }
}

#[test]
fn what_was_not_done_has_no_receipt() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let unmet = ask(&mut client, "PUT", "id=k&receipt=true", "If-Match: *\r\n");
    assert_eq!((unmet.status, unmet.header("kvorum-receipt")), (412, None));
    client.put("/v0/entity?id=k", b"x");
    let conflict = ask(&mut client, "POST", "id=k&add=1&receipt=true", "");
    assert_eq!((conflict.status, conflict.header("kvorum-receipt")), (409, None));
}

#[test]
fn routes_without_receipts_refuse_the_receipt_parameter_by_name() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for target in [
        "/v0/entity?id=k&receipt=true",
        "/v0/entities?start=k&receipt=true",
        "/admin/profile?receipt=true",
        "/ui/key?id=k&receipt=true",
        "/ui/events?receipt=true",
    ] {
        let refused = client.get(target);
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 400, "{target}");
        assert!(detail.contains("unknown parameter \"receipt\""), "{target}: {detail}");
    }
    for (method, query, condition, _) in WRITES {
        for wrong in ["receipt=yes", "receipt=", "receipt", "receipt=1"] {
            let refused = ask(&mut client, method, &format!("{query}&{wrong}"), condition);
            assert_eq!(refused.status, 400, "{method} {query}&{wrong}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.starts_with("receipt="), "{method} {query}&{wrong}: {detail}");
        }
    }
    assert_eq!(client.get("/v0/entity?id=k").status, 404, "nothing was written");
}

#[test]
fn a_receipt_omits_a_replica_that_is_down() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let all = |cluster: &Cluster, key: &str, more: &str, expected: &[&str], up: &[usize]| {
        for node in up {
            let mut client = cluster.client(*node);
            for (method, query, condition, status) in WRITES {
                let query = query.replace("id=k", &format!("id={key}"));
                let answer =
                    ask(&mut client, method, &format!("{query}&receipt=true{more}"), condition);
                assert_eq!(answer.status, status, "{method} {query} through n{node}");
                let receipt = receipt(&answer);
                assert_eq!(names(&receipt), set(expected), "{method} {query}: {receipt}");
            }
        }
    };
    // The leader of at least one of these keys is not the node that the client asks.
    for key in ["a", "b", "c", "d"] {
        all(&cluster, key, "&ack=3", &["n0", "n1", "n2"], &[0, 1, 2]);
    }
    let mut client = cluster.client(0);
    let one = ask(&mut client, "PUT", "id=k&ack=1&from=1&receipt=true", "");
    assert!(receipt(&one).contains(", ack=1, from=1, ") && names(&receipt(&one)).len() == 1);
    cluster.kill(2);
    for key in ["a", "b", "c", "d"] {
        all(&cluster, key, "", &["n0", "n1"], &[0, 1]);
    }
    let refused = ask(&mut client, "PUT", "id=k&ack=3&receipt=true", "");
    assert_eq!((refused.status, refused.header("kvorum-receipt")), (504, None));
}

#[test]
fn the_command_line_prints_receipts() {
    let node = Node::start(&[]);
    let url = format!("http://{}", node.address);
    let said = |args: &[&str]| {
        let output = run(&[args, &["--url", &url]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let told = format!(" acknowledged by {url} (1 of 1 required, sync always, epoch 1)\n");
    for (args, before) in [
        (&["put", "k", "v"][..], ""),
        (&["put", "k", "v", "--if-match", "*"], ""),
        (&["del", "k"], ""),
        (&["add", "n", "2"], "2\n"),
    ] {
        let text = said(&[args, &["--receipt"]].concat());
        assert!(text.starts_with(&format!("{before}version ")), "{args:?}: {text}");
        assert!(text.ends_with(&told), "{args:?}: {text}");
        assert_eq!(text.lines().count(), before.lines().count() + 1);
        said(&["put", "k", "v"]);
        let json: serde_json::Value =
            serde_json::from_str(&said(&[args, &["--receipt", "--json"]].concat())).unwrap();
        let receipt = &json["receipt"];
        assert_eq!(receipt["by"], serde_json::json!([url]), "{args:?}: {json}");
        assert_eq!((&receipt["ack"], &receipt["sync"]), (&1.into(), &"always".into()));
        assert!(json.get("version").is_none_or(|version| *version == receipt["version"]));
        said(&["put", "k", "v"]);
        said(&["put", "n", "0"]);
    }
    assert_eq!(said(&["put", "k", "v"]), "");
}
