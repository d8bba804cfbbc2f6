//! Who may ask a node on loopback: programs on the machine and the node's own pages, not what other
//! pages have a browser send.

use std::fs;

use crate::client::{Client, Response};
use crate::process::{Node, kvorum};

fn ask(client: &mut Client, method: &str, target: &str, headers: &str) -> Response {
    client.send(format!("{method} {target} HTTP/1.1\r\n{headers}Content-Length: 0\r\n\r\n"));
    client.response()
}

fn status(node: &Node, target: &str, headers: &str) -> u16 {
    ask(&mut node.client(), "GET", target, headers).status
}

#[test]
fn a_name_that_is_not_the_nodes_is_refused_everywhere() {
    let node = Node::start(&[]);
    let mut client = node.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    for target in [
        "/v0/entity?id=k",
        "/v0/entities?start=a",
        "/v0/status",
        "/metrics",
        "/healthz",
        "/ui",
        "/ui/events",
        "/ui/key?id=k",
        "/admin/profile?seconds=1",
    ] {
        let refused = ask(&mut client, "GET", target, "Host: evil.example\r\n");
        assert_eq!(refused.status, 421, "{target}");
        let said = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(said.contains("evil.example") && said.contains("--allow-host"), "{said}");
    }
    for method in ["PUT", "DELETE"] {
        let refused = ask(&mut client, method, "/v0/entity?id=k", "Host: evil.example:80\r\n");
        assert_eq!((refused.status, refused.json()["outcome"].as_str()), (421, Some("none")));
    }
    assert_eq!(client.get("/v0/entity?id=k").body(), b"v");
    for host in ["127.0.0.1", "127.0.0.1:1", "[::1]:1", "10.1.2.3", "localhost", "LOCALHOST:8080"] {
        assert_eq!(status(&node, "/v0/entity?id=k", &format!("Host: {host}\r\n")), 200, "{host}");
    }
    for host in ["", "localhost.evil.example", "127.0.0.1.evil.example", "t", "[::1", "x y"] {
        let status = status(&node, "/v0/entity?id=k", &format!("Host: {host}\r\n"));
        assert!(matches!(status, 400 | 421), "{host:?}: {status}");
    }
    client.send("GET http://evil.example/v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status, 421, "the target counts more than the header");
}

#[test]
fn more_names_can_be_allowed_by_flag_variable_and_file() {
    let data = || tempfile::tempdir().unwrap();
    let names = "db.example,other.example";
    let by_flag = Node::start(&["--allow-host", names]);
    let mut command = kvorum();
    command.env("KVORUM_ALLOW_HOST", names);
    let by_variable = Node::start_with(command, data(), &[]);
    let file = data();
    let path = file.path().join("kvorum.toml");
    fs::write(&path, format!("allow-host = \"{names}\"\n")).unwrap();
    let by_file = Node::start(&["--config", path.to_str().unwrap()]);
    for node in [by_flag, by_variable, by_file] {
        for (host, expected) in
            [("DB.example:443", 404), ("other.example", 404), ("evil.example", 421)]
        {
            let got = status(&node, "/v0/entity?id=k", &format!("Host: {host}\r\n"));
            assert_eq!(got, expected, "{host}");
        }
    }
}

#[test]
fn the_advertised_name_is_the_nodes_own() {
    let args = ["--cluster", "a=http://db.example:8080", "--advertise", "http://db.example:8080"];
    let node = Node::start(&args);
    assert_eq!(status(&node, "/healthz", "Host: db.example:8080\r\n"), 200);
    assert_eq!(status(&node, "/healthz", "Host: evil.example\r\n"), 421);
}

#[test]
fn a_node_that_other_machines_reach_has_any_name() {
    let data = tempfile::tempdir().unwrap();
    let node = Node::start_at("0.0.0.0:0", kvorum(), data, &["--insecure"]);
    assert_eq!(status(&node, "/healthz", "Host: db.example\r\n"), 200);
    assert_eq!(status(&node, "/healthz", "Host: db.example\r\nOrigin: http://x.example\r\n"), 200);
}

#[test]
fn other_sites_pages_are_refused_and_the_nodes_own_are_not() {
    let node = Node::start(&[]);
    let host = format!("Host: {}\r\n", node.address);
    let own = format!("Origin: http://{}\r\n", node.address);
    let mut client = node.client();
    for (headers, expected) in [
        (own.as_str(), 201),
        ("Sec-Fetch-Site: same-origin\r\n", 201),
        ("Sec-Fetch-Site: none\r\n", 201),
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://127.0.0.1:1\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", 403),
    ] {
        let answer = ask(&mut client, "PUT", "/v0/entity?id=k", &format!("{host}{headers}"));
        assert_eq!(answer.status, expected, "{headers}");
    }
    let link = format!("{host}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n");
    assert_eq!(status(&node, "/ui", &link), 200, "a link to the dashboard may be followed");
    assert_eq!(status(&node, "/admin/profile?seconds=1", &link), 403);
}

#[test]
fn values_are_not_to_be_guessed_at() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"<script>alert(1)</script>");
    for target in ["/v0/entity?id=k", "/v0/entities?start=a"] {
        let got = client.get(target);
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"), "{target}");
    }
}
