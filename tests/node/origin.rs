//! Cross-origin requests: requests of the node's own pages and of pages in `--allow-origin` are
//! permitted. Requests that other pages make a browser send are refused, whatever host name they
//! use.

use std::fs;

use kit::raw::{Client, Response};

use crate::process::{Node, kvorum, run};
use crate::profile::own_address;
use crate::tokens::{routes, scope};

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
fn a_node_that_other_machines_reach_has_any_name_for_them_and_its_own_for_its_machine() {
    let data = tempfile::tempdir().unwrap();
    let node = Node::start_at("0.0.0.0:0", kvorum(), data, &["--insecure"]);
    for host in ["evil.example", "0.0.0.0", "[::ffff:127.0.0.1]"] {
        let refused = ask(&mut node.client(), "GET", "/healthz", &format!("Host: {host}\r\n"));
        assert_eq!(refused.status, 421, "{host} can be pointed at 127.0.0.1");
    }
    assert_eq!(status(&node, "/healthz", "Host: 127.0.0.1\r\n"), 200);
    let Some(far) = own_address().map(|ip| (ip, node.address.port()).into()) else { return };
    let status = |headers: &str| ask(&mut Client::connect(far), "GET", "/healthz", headers).status;
    assert_eq!(status("Host: db.example\r\n"), 200);
    assert_eq!(status("Host: db.example\r\nOrigin: http://db.example\r\n"), 200);
    assert_eq!(status("Host: db.example\r\nOrigin: http://evil.example\r\n"), 403);
    assert_eq!(status("Host: db.example\r\nSec-Fetch-Site: cross-site\r\n"), 403);
}

#[test]
fn other_sites_pages_are_refused_and_the_nodes_own_are_not() {
    let node = Node::start(&[]);
    let host = format!("Host: {}\r\n", node.address);
    let own = format!("Origin: http://{}\r\n", node.address);
    let secured = format!("Origin: https://{}\r\n", node.address);
    let [same_site, proxied] =
        ["same-site", "same-origin"].map(|site| format!("{secured}Sec-Fetch-Site: {site}\r\n"));
    let mut client = node.client();
    for (headers, expected) in [
        (own.as_str(), 201),
        ("Sec-Fetch-Site: same-origin\r\n", 201),
        ("Sec-Fetch-Site: none\r\n", 201),
        ("Origin: http://evil.example\r\n", 403),
        (secured.as_str(), 403),
        (same_site.as_str(), 403),
        // A proxy terminates TLS, so the browser reports the origin of the page as https.
        (proxied.as_str(), 201),
        ("Origin: null\r\n", 403),
        ("Origin: http://127.0.0.1:1\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
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
fn values_are_sent_with_the_nosniff_header() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"<script>alert(1)</script>");
    for target in ["/v0/entity?id=k", "/v0/entities?start=a"] {
        let got = client.get(target);
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"), "{target}");
    }
}

/// The origin that `--allow-origin` lists.
const LISTED: &str = "https://app.example";

/// Sends a request with these headers to every route of the API; calls `on_answer` with the method,
/// the path and the answer.
fn request_every_route(
    node: &Node,
    headers: &str,
    mut on_answer: impl FnMut(&str, &str, &Response),
) {
    for (method, path) in routes() {
        let target = scope(&path).1;
        let mut client = node.client();
        client.send(format!("{method} {target} HTTP/1.1\r\n{headers}Content-Length: 0\r\n\r\n"));
        on_answer(&method, &path, &client.head_response());
    }
}

/// Row 36 of docs/results/reliability.md: the requests that a foreign page can make a browser send.
#[test]
fn every_route_refuses_foreign_origins() {
    let near = Node::start(&["--allow-origin", LISTED]);
    let data = tempfile::tempdir().unwrap();
    let open = Node::start_at("0.0.0.0:0", kvorum(), data, &["--insecure"]);
    let strange = "Host: evil.example\r\nOrigin: http://evil.example\r\n";
    for node in [&near, &open] {
        let host = format!("Host: 127.0.0.1:{}\r\n", node.address.port());
        for (headers, expected) in [
            (format!("{host}Origin: http://evil.example\r\n"), 403),
            (format!("{host}Origin: null\r\n"), 403),
            (format!("{host}Origin: http://app.example\r\n"), 403),
            (format!("{host}Origin: {LISTED}:444\r\n"), 403),
            (format!("{host}Origin: {LISTED}.evil.example\r\n"), 403),
            (format!("{host}Origin: {LISTED}\r\nOrigin: http://evil.example\r\n"), 400),
            (format!("{host}Sec-Fetch-Site: cross-site\r\n"), 403),
            (strange.to_owned(), 421),
            (format!("Host: evil.example\r\nOrigin: {LISTED}\r\n"), 421),
        ] {
            request_every_route(node, &headers, |method, path, refused| {
                assert_eq!(refused.status, expected, "{method} {path} {headers}");
                let told = refused.header("access-control-allow-origin");
                assert!(told.is_none_or(|told| told == LISTED), "{method} {path} {headers}");
            });
        }
    }
}

#[test]
fn a_body_that_a_page_sends_is_not_waited_for() {
    let node = Node::start(&[]);
    for headers in [
        "Host: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 5\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nTransfer-Encoding: chunked\r\n",
        "Host: localhost\r\nOrigin: null\r\nContent-Length: 5\r\nExpect: 100-continue\r\n",
        "Host: evil.example\r\nContent-Length: 5\r\n",
    ] {
        let mut client = node.client();
        client.send(format!("PUT /v0/entity?id=k HTTP/1.1\r\n{headers}\r\n"));
        let refused = client.response();
        assert!([403, 421].contains(&refused.status), "{headers}: {}", refused.status);
        assert!(refused.closes(), "{headers}");
    }
    assert_eq!(node.client().get("/v0/entity?id=k").status, 404);
}

#[test]
fn pages_of_listed_origins_may_ask_and_read_and_administer_with_a_token() {
    let node = Node::start(&["--allow-origin", &format!("http://other.example:81,{LISTED}")]);
    let headers = format!("Host: localhost\r\nOrigin: {LISTED}\r\nSec-Fetch-Site: cross-site\r\n");
    request_every_route(&node, &headers, |method, path, answer| {
        let (scope, _) = scope(path);
        assert_eq!(answer.status == 401, scope == "admin", "{method} {path}: {}", answer.status);
        assert_ne!(answer.status, 403, "{method} {path}");
        assert_eq!(answer.header("access-control-allow-origin"), Some(LISTED), "{method} {path}");
        assert_eq!(answer.header("vary"), Some("origin"));
        assert!(answer.header("access-control-expose-headers").unwrap().contains("kvorum-receipt"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    });
    let mut client = node.client();
    let put = ask(&mut client, "PUT", "/v0/entity?id=k", &headers);
    assert_eq!((put.status, put.header("access-control-allow-origin")), (201, Some(LISTED)));
    let plain = client.get("/v0/entity?id=k");
    assert_eq!(
        (plain.header("access-control-allow-origin"), plain.header("vary")),
        (None, Some("origin"))
    );
}

#[test]
fn a_preflight_request_gets_the_permitted_methods_and_headers() {
    let files = tempfile::tempdir().unwrap();
    let admin = files.path().join("admin");
    fs::write(&admin, "an admin token of this test").unwrap();
    let guarded = ["--require-auth", "--admin-token-file", admin.to_str().unwrap()];
    let node = Node::start(&[&["--allow-origin", LISTED][..], &guarded].concat());
    let wants =
        "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: authorization";
    let asks = |path: &str, origin: &str| {
        let headers = format!("Host: localhost\r\nOrigin: {origin}\r\n{wants}\r\n");
        let mut client = node.client();
        client.send(format!("OPTIONS {path} HTTP/1.1\r\n{headers}\r\n"));
        client.head_response()
    };
    for (_, path) in routes() {
        let told = asks(&path, LISTED);
        assert_eq!((told.status, told.header("content-length")), (204, None), "{path}");
        assert_eq!(told.header("access-control-allow-origin"), Some(LISTED));
        let methods = told.header("access-control-allow-methods").unwrap().to_owned();
        let known: Vec<_> = routes().into_iter().filter(|(_, of)| *of == path).collect();
        assert!(known.iter().all(|(method, _)| methods.contains(method)), "{path}: {methods}");
        assert!(told.header("access-control-allow-headers").unwrap().starts_with("authorization,"));
        assert_eq!(told.header("access-control-max-age"), Some("7200"));
        assert_eq!(told.header("vary"), Some("origin"));
        let refused = asks(&path, "http://evil.example");
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    }
    assert_eq!(asks("/nowhere", LISTED).status, 404);
    let headers = format!("Host: localhost\r\nOrigin: {LISTED}\r\n");
    let without = ask(&mut node.client(), "OPTIONS", "/v0/entity?id=k", &headers);
    assert_eq!(without.status, 401, "it asks for nothing");
    let without = ask(&mut node.client(), "PUT", "/v0/entity?id=k", &headers);
    assert_eq!(
        (without.status, without.header("access-control-allow-origin")),
        (401, Some(LISTED))
    );
    let off = Node::start(&[]);
    let headers = format!("Host: localhost\r\n{wants}\r\n");
    let answer = ask(&mut off.client(), "OPTIONS", "/v0/entity?id=k", &headers);
    assert_eq!((answer.status, answer.header("vary")), (405, None));
}

#[test]
fn invalid_origins_are_refused_and_check_prints_the_rights_of_pages() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let check = |args: &[&str]| {
        let output = run(&[&["serve", "--data", data, "--check"], args].concat());
        let said = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for (origin, named) in [
        ("*", "any web page that somebody opens"),
        ("https://a.example,*", "any web page that somebody opens"),
        ("null", "sandboxed frames"),
        ("", "not a valid origin"),
        ("app.example", "not a valid origin"),
        ("https://app.example/", "not a valid origin"),
        ("https://app.example/path", "not a valid origin"),
        ("https://user@app.example", "not a valid origin"),
        ("https://*.example", "not a valid origin"),
        ("https://app.example:", "not a valid origin"),
        ("https://app.example:0", "not a valid origin"),
        ("https://app.example:65536", "not a valid origin"),
        ("https://[::1", "not a valid origin"),
        ("https://[::1]]", "not a valid origin"),
        ("https://::1", "not a valid origin"),
        ("ftp://app.example", "not a valid origin"),
        ("file://", "not a valid origin"),
        ("https://app.example\r\nset-cookie: a=b", "not a valid origin"),
        ("https://app.example, https://b.example", "not a valid origin"),
    ] {
        let (good, said) = check(&["--allow-origin", origin]);
        assert!(!good && said.contains(named) && said.lines().count() == 1, "{origin:?}: {said}");
        assert!(said.contains("--allow-origin"), "{said}");
    }
    let said = |args: &[&str]| {
        let (good, said) = check(&[&["--allow-origin", "HTTPS://App.example:443"], args].concat());
        assert!(good && said.contains("those of https://app.example, which"), "{said}");
        said
    };
    assert!(check(&[]).1.contains("the node's own (/ui), no others"));
    assert!(said(&[]).contains("READ AND WRITE without a token in browsers on this machine"));
    assert!(said(&["--require-auth"]).contains("may ask, with a token"));
    let open = said(&["--listen", "0.0.0.0:0", "--insecure"]);
    assert!(open.contains("in any browser that reaches this node"), "{open}");
}
