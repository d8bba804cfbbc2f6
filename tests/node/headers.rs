//! Permitted request headers, and answer headers for caches, browsers and tools that work with any
//! server.

use kit::raw::{Client, Response};

use crate::process::Node;
use crate::tokens::{routes, scope};

fn ask(client: &mut Client, method: &str, target: &str, headers: &str) -> Response {
    client.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
    let has_body = !["HEAD", "OPTIONS"].contains(&method);
    if has_body { client.response() } else { client.head_response() }
}

/// Sends a PUT of one byte.
fn put(client: &mut Client, headers: &str) -> Response {
    let headers = format!("{headers}Content-Length: 1\r\n");
    client.send(format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{headers}\r\nv"));
    client.response()
}

#[test]
fn cache_control_headers_prevent_stale_answers() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    let tag = client.put("/v0/entity?id=k", b"v").header("etag").unwrap().to_owned();
    let value = Some("private, no-cache");
    for method in ["GET", "HEAD"] {
        let cached =
            |answer: Response| (answer.status, answer.header("cache-control").map(str::to_owned));
        let of = |status: u16, says: Option<&str>| (status, says.map(str::to_owned));
        let known = format!("If-None-Match: {tag}\r\n");
        assert_eq!(cached(ask(client, method, "/v0/entity?id=k", "")), of(200, value));
        client.send(format!("{method} /v0/entity?id=k HTTP/1.1\r\nHost: localhost\r\n{known}\r\n"));
        assert_eq!(cached(client.head_response()), of(304, value));
        for (target, status) in [("/v0/entity?id=absent", 404), ("/v0/entity", 400), ("/no", 404)] {
            assert_eq!(cached(ask(client, method, target, "")), of(status, Some("no-store")));
        }
    }
    for (method, path) in routes() {
        if !["GET", "HEAD"].contains(&method.as_str()) {
            continue;
        }
        let mut client = node.client();
        client.send(format!("{method} {} HTTP/1.1\r\nHost: localhost\r\n\r\n", scope(&path).1));
        let answer = client.head_response();
        let says = answer.header("cache-control");
        let says = says.unwrap_or_else(|| panic!("{method} {path}: {}", answer.status));
        let expected = if path == "/ui" { "no-cache" } else { "no-store" };
        assert_eq!(says, expected, "{method} {path}");
    }
    let range = node.client().get("/v0/entities?start=a");
    assert_eq!((range.status, range.header("cache-control")), (200, Some("no-store")));
}

/// Values have no date, so the server ignores conditions on dates (RFC 9110, 13.1.3 and 13.1.4).
#[test]
fn conditions_on_dates_are_ignored_where_nothing_is_lost_by_that() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    let tag = client.put("/v0/entity?id=k", b"v").header("etag").unwrap().to_owned();
    for condition in ["If-Modified-Since", "If-Unmodified-Since"] {
        for date in ["Sat, 29 Oct 1994 19:43:31 GMT", "Fri, 31 Dec 2100 23:59:59 GMT", "no date"] {
            let header = format!("{condition}: {date}\r\n");
            for target in ["/v0/entity?id=k", "/v0/entities?start=a", "/metrics", "/ui"] {
                assert_eq!(ask(client, "GET", target, &header).status, 200, "{header} {target}");
            }
        }
    }
    let since = "If-Modified-Since: Sat, 29 Oct 1994 19:43:31 GMT\r\n";
    assert_eq!(put(client, since).status, 201);
    let unless = "If-Unmodified-Since: Fri, 31 Dec 2100 23:59:59 GMT\r\n";
    let refused = put(client, unless);
    assert_eq!((refused.status, refused.json()["outcome"].as_str()), (400, Some("none")));
    let stale = put(client, &format!("{unless}If-Match: {tag}\r\n"));
    assert_eq!(stale.status, 412, "the tag decides");
}

#[test]
fn an_encoded_value_is_refused_and_other_headers_of_content_are_not_kept() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    for coding in ["gzip", "br", "identity, gzip", "", "GZIP"] {
        let refused = put(client, &format!("Content-Encoding: {coding}\r\n"));
        let problem = refused.json();
        assert_eq!((refused.status, &problem["type"]), (415, &"content-coding".into()));
        assert_eq!(problem["outcome"], "none", "{coding}");
        assert_eq!(refused.header("accept-encoding"), Some("identity"));
    }
    assert_eq!(client.get("/v0/entity?id=k").status, 404);
    let kept = "Content-Encoding: Identity\r\nContent-Type: application/json\r\n\
        Content-Language: de\r\n";
    assert_eq!(put(client, kept).status, 201);
    let got = client.get("/v0/entity?id=k");
    assert_eq!(got.header("content-type"), Some("application/octet-stream"));
    assert_eq!((got.header("content-encoding"), got.header("content-language")), (None, None));
}

#[test]
fn metrics_come_in_the_format_that_is_wanted() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    let mut of = |accept: &str| {
        let answer = ask(client, "GET", "/metrics", accept);
        let kind = answer.header("content-type").unwrap().to_owned();
        (kind, String::from_utf8(answer.body()).unwrap())
    };
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    for (accept, expected) in [
        ("", open),
        ("Accept: */*\r\n", open),
        ("Accept: application/json\r\n", open),
        ("Accept: text/plain\r\n", plain),
        ("Accept: text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n", plain),
        ("Accept: text/*;q=0.5\r\nAccept: application/*;q=0.4\r\n", plain),
        // The `Accept` header of Prometheus.
        (
            "Accept: application/openmetrics-text;version=1.0.0;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n",
            open,
        ),
    ] {
        assert_eq!(of(accept).0, expected, "{accept}");
    }
    let (open, plain) = (of("").1, of("Accept: text/plain\r\n").1);
    assert!(open.contains("\n# TYPE kvorum_flushes counter\n") && open.ends_with("# EOF\n"));
    assert!(plain.contains("\n# TYPE kvorum_flushes_total counter\n") && !plain.contains("# EOF"));
    let names = |text: &str| {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let (old, new) = (names(&plain), names(&open));
    assert!(new.iter().all(|name| old.contains(name)), "every sample is in both");
    // Each sample must follow the TYPE line of its metric.
    let mut declared = "";
    for line in plain.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            declared = kind.split(' ').next().unwrap();
        }
        assert!(line.starts_with('#') || line.starts_with(declared), "{declared}: {line}");
    }
}

#[test]
fn the_root_leads_people_to_the_dashboard_and_tools_to_what_there_is() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    let browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";
    for method in ["GET", "HEAD"] {
        let sent = ask(client, method, "/", browser);
        assert_eq!((sent.status, sent.header("location")), (307, Some("/ui")), "{method}");
        for accept in ["", "Accept: */*\r\n", "Accept: text/plain\r\n"] {
            assert_eq!(ask(client, method, "/", accept).status, 200, "{method} {accept}");
        }
    }
    let text = String::from_utf8(client.get("/").body()).unwrap();
    assert!(text.contains("/v0/entity?id=KEY") && text.contains("/ui"), "{text}");
    let link = format!("{browser}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n");
    assert_eq!(ask(client, "GET", "/", &link).status, 307, "a link may be followed");
    let allowed = ask(client, "OPTIONS", "/", "");
    assert_eq!((allowed.status, allowed.header("allow")), (204, Some("GET, HEAD, OPTIONS")));
    let refused = client.request("POST", "/", b"");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
    // haproxy sends this request if `option httpchk` has no arguments.
    let mut old = node.client();
    old.send("OPTIONS / HTTP/1.0\r\n\r\n");
    assert_eq!(old.head_response().status, 204);
}

#[test]
fn unknown_paths_are_404_except_where_404_means_an_absent_key() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    for path in ["/favicon.ico", "/robots.txt", "/metrics/", "/v1/entity?id=k", "/ui/none", "/v00"]
    {
        let refused = client.get(path);
        assert_eq!((refused.status, &refused.json()["type"]), (404, &"no-such-path".into()));
    }
    for path in ["/v0", "/v0/", "/v0/entity/", "/v0/Entity?id=k", "//v0/entity?id=k", "/V0/entity"]
    {
        assert_eq!(client.get(path).status, 400, "{path}");
    }
}

#[test]
fn a_post_without_an_addition_is_not_allowed() {
    let node = Node::start(&[]);
    let client = &mut node.client();
    for query in ["", "?id=k", "?id=k&ttl=1h", "?id=k&value=1", "?id=k&adding=1"] {
        let refused = client.request("POST", &format!("/v0/entity{query}"), b"");
        let allowed = Some("GET, HEAD, PUT, DELETE");
        assert_eq!((refused.status, refused.header("allow")), (405, allowed), "{query}");
        assert_eq!(refused.json()["outcome"], "none");
    }
    assert_eq!(client.request("POST", "/v0/entity?id=k&add=", b"").status, 400);
    assert_eq!(client.request("POST", "/v0/entity?id=k&add=1", b"").status, 200);
}

#[test]
fn a_second_authorization_header_is_refused() {
    let node = Node::start(&[]);
    let one = "Authorization: Bearer a\r\n";
    for (method, path) in routes() {
        let target = scope(&path).1;
        let mut client = node.client();
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{one}{one}\r\n"));
        assert_eq!(client.head_response().status, 400, "{method} {path}");
    }
    assert_eq!(ask(&mut node.client(), "GET", "/v0/entity?id=k", one).status, 404);
}

#[test]
fn a_refused_head_of_a_write_says_that_nothing_was_done() {
    let node = Node::start(&[]);
    for (target, headers) in [
        ("id=k", "Authorization: Bearer a\r\nAuthorization: Bearer a\r\n"),
        ("id=k", "Host: localhost\r\n"),
        ("id=k", "Origin: null\r\nOrigin: null\r\n"),
        ("id=k#fragment", ""),
        ("id=k", "Content-Range: bytes 0-0/2\r\n"),
        ("id=k&ack=99999999999999999999", ""),
    ] {
        let mut client = node.client();
        let head = format!("PUT /v0/entity?{target} HTTP/1.1\r\nHost: localhost\r\n{headers}");
        client.send(format!("{head}Content-Length: 0\r\n\r\n"));
        let refused = client.response();
        let problem = refused.json();
        assert_eq!((refused.status / 100, &problem["outcome"]), (4, &"none".into()), "{problem}");
    }
    assert_eq!(node.client().get("/v0/entity?id=k").status, 404);
}
