//! The HTTP contract of a single node: values and their versions, limits, refused requests, encoded
//! keys, health and metrics.

use crate::process::Node;

#[test]
fn a_value_is_put_read_replaced_and_deleted() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let absent = client.get("/v0/entity?id=k");
    assert_eq!((absent.status, absent.header("etag")), (404, None));
    absent.json();
    for value in [&b"one"[..], b"", b"\0\xff\r\n"] {
        let put = client.put("/v0/entity?id=k", value);
        assert_eq!((put.status, put.body()), (201, vec![]));
        let got = client.get("/v0/entity?id=k");
        assert_eq!((got.status, got.body()), (200, value.to_vec()));
        assert_eq!(got.header("etag"), put.header("etag"), "both name the version");
    }
    let deleted = client.delete("/v0/entity?id=k");
    assert_eq!((deleted.status, deleted.body()), (202, vec![]));
    assert_eq!(client.get("/v0/entity?id=k").status, 404);
    assert_eq!(client.delete("/v0/entity?id=k").status, 202, "an absent key too");
}

#[test]
fn each_write_gets_a_greater_version() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let mut last = String::new();
    for _ in 0..50 {
        let etag = client.put("/v0/entity?id=k", b"v").header("etag").unwrap().to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() == 27, "{etag}");
        assert!(etag > last, "{etag} after {last}");
        last = etag;
    }
}

#[test]
fn head_is_a_get_without_the_body() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"value");
    let get = client.get("/v0/entity?id=k");
    let head = client.request("HEAD", "/v0/entity?id=k", b"");
    for name in ["etag", "content-length", "content-type"] {
        assert_eq!(head.header(name), get.header(name));
        assert!(head.header(name).is_some());
    }
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    assert_eq!(client.request("HEAD", "/v0/entity?id=absent", b"").status, 404);
    assert_eq!(client.get("/v0/entity?id=k").body(), b"value", "no byte of a body was left over");
}

#[test]
fn values_up_to_the_limit_and_not_over_it() {
    let node = Node::start(&["--max-value", "100KiB"]);
    let mut client = node.client();
    let limit = 100 * 1024;
    for len in [1, 15_000, 17_000, 70_000, limit] {
        let value: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
        assert_eq!(client.put("/v0/entity?id=k", &value).status, 201, "{len} bytes");
        assert!(client.get("/v0/entity?id=k").body() == value, "{len} bytes came back changed");
    }
    let over = client.put("/v0/entity?id=k", &vec![b'x'; limit + 1]);
    assert_eq!((over.status, over.closes()), (413, true));
    assert_eq!(over.json()["outcome"], "none");
    let mut client = node.client();
    assert_eq!(client.get("/v0/entity?id=k").body().len(), limit, "the last one that was taken");
}

#[test]
fn another_method_is_refused_with_those_allowed() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for method in ["PATCH", "OPTIONS", "TRACE", "FROB"] {
        let refused = client.request(method, "/v0/entity?id=k", b"");
        assert_eq!(
            (refused.status, refused.header("allow")),
            (405, Some("GET, HEAD, PUT, DELETE, POST"))
        );
        refused.json();
    }
    for method in ["PUT", "DELETE", "POST"] {
        let refused = client.request(method, "/v0/entities?start=k", b"");
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")));
    }
    let refused = client.request("HEAD", "/v0/entities?start=k", b"");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")));
    for path in ["/healthz", "/readyz", "/metrics"] {
        let refused = client.request("POST", path, b"");
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    }
}

#[test]
fn invalid_queries_are_refused_by_name() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let long = "a".repeat(1025);
    for (query, named) in [
        ("", "\"id\" is missing"),
        ("?", "\"id\" is missing"),
        ("?id", "\"id\" is empty"),
        ("?id=", "\"id\" is empty"),
        ("?id=k&x=1", "unknown parameter \"x\""),
        ("?id=k&", "has a '&' without a parameter"),
        ("?ID=k", "unknown parameter \"ID\""),
        ("?id=k&id=k", "duplicate parameter \"id\""),
        ("?id=k&ack=1&ack=3", "duplicate parameter \"ack\""),
        ("?id=%4", "two hex digits"),
        ("?id=%zz", "two hex digits"),
        ("?id=k&ack=one", "ack=\"one\" is not"),
        ("?id=k&ack=+1", "\"ack\" has a '+'"),
        ("?id=k&ack=%2B1", "ack=\"%2B1\" is not"),
        ("?id=a+b", "write %2B for a plus, %20 for a space"),
        ("?id=+", "\"id\" has a '+'"),
        ("?id=k&x+y=1", "has a '+'"),
        ("?id=k&from=", "from=\"\" is not"),
        ("?id=k&ack=0", "ack is 0"),
        ("?id=k&ack=2", "ack=2 must not exceed from=1"),
        ("?id=k&from=2", "from=2 must not exceed the number of nodes, 1"),
        ("?id=k&from=256", "from=256 must not exceed 255"),
        (&format!("?id={long}"), "1025 bytes"),
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let refused = client.request(method, &format!("/v0/entity{query}"), b"");
            assert_eq!(refused.status, 400, "{method} {query}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(named), "{query}: {detail}");
        }
    }
    for (query, named) in [
        ("", "\"start\" is missing"),
        ("?start=", "\"start\" is empty"),
        ("?start=a&end=", "end must not be empty"),
        ("?start=a&id=b", "unknown parameter \"id\""),
        ("?start=a&local=yes", "local=\"yes\" is not"),
        ("?start=a&ack=2", "ack=2 must not exceed from=1"),
    ] {
        let refused = client.get(&format!("/v0/entities{query}"));
        assert_eq!(refused.status, 400, "{query}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(named), "{query}: {detail}");
    }
    for path in ["/v0", "/v0/entity/", "/v0/Entity?id=k", "//v0/entity?id=k"] {
        let refused = client.get(path);
        assert_eq!(refused.status, 400, "{path}");
        refused.json();
    }
}

#[test]
fn a_quorum_of_one_can_be_asked_for() {
    let node = Node::start(&[]);
    let mut client = node.client();
    assert_eq!(client.put("/v0/entity?id=k&ack=1&from=1", b"v").status, 201);
    assert_eq!(client.get("/v0/entity?from=1&id=k").body(), b"v");
    assert_eq!(client.delete("/v0/entity?ack=1&id=k").status, 202);
}

/// Query builders encode a space as `+`. Such a key must neither be decoded as another key, nor be
/// stored.
#[test]
fn a_raw_plus_in_a_query_is_refused() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=a%2Bb", b"plus");
    client.put("/v0/entity?id=a%20b", b"space");
    for (method, target) in [
        ("GET", "/v0/entity?id=a+b"),
        ("HEAD", "/v0/entity?id=a+b"),
        ("PUT", "/v0/entity?id=a+b"),
        ("DELETE", "/v0/entity?id=a+b"),
        ("POST", "/v0/entity?id=a+b&add=1"),
        ("GET", "/v0/entities?start=a+b"),
        ("GET", "/v0/entities?start=a&end=a+b"),
        ("GET", "/ui/key?id=a+b"),
    ] {
        let refused = client.request(method, target, b"");
        assert_eq!(refused.status, 400, "{method} {target}");
        if method == "HEAD" {
            continue;
        }
        let problem = refused.json();
        assert_eq!(problem["type"], "bad-request");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("write %2B for a plus, %20 for a space"), "{detail}");
    }
    assert_eq!(client.get("/v0/entities?start=a").chunks, [&b"a b\nspace"[..], b"a+b\nplus"]);
}

/// Row 35 of docs/results/reliability.md: a key consists of arbitrary bytes, and is returned
/// unchanged.
#[test]
fn keys_of_any_bytes_come_back_unchanged() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let longest = "%61".repeat(1024);
    let keys: [(&str, &[u8]); 9] = [
        ("%00", b"\0"),
        ("%2e%2e/%2e%2e/etc/passwd", b"../../etc/passwd"),
        ("a%2Bb", b"a+b"),
        ("a%20b", b"a b"),
        ("%C3%28", b"\xc3("),
        ("%ff%FE", b"\xff\xfe"),
        ("a=b%26c", b"a=b&c"),
        ("%25zz", b"%zz"),
        (&longest, &[b'a'; 1024]),
    ];
    for (number, (escaped, _)) in keys.iter().enumerate() {
        let put = client.put(&format!("/v0/entity?id={escaped}"), number.to_string().as_bytes());
        assert_eq!(put.status, 201, "{escaped}");
    }
    for (number, (escaped, key)) in keys.iter().enumerate() {
        let got = client.get(&format!("/v0/entity?id={escaped}"));
        assert_eq!(got.body(), number.to_string().into_bytes(), "{escaped}");
        let other: String = key.iter().map(|byte| format!("%{byte:02x}")).collect();
        let got = client.get(&format!("/v0/entity?id={other}"));
        assert_eq!(got.body(), number.to_string().into_bytes(), "{escaped} written as {other}");
    }
    let mut expected: Vec<Vec<u8>> = keys
        .iter()
        .enumerate()
        .map(|(number, (_, key))| [*key, b"\n", number.to_string().as_bytes()].concat())
        .collect();
    expected.sort();
    assert_eq!(client.get("/v0/entities?start=%00").chunks, expected);
}

#[test]
fn health_readiness_and_metrics() {
    let node = Node::start(&[]);
    let mut client = node.client();
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    client.put("/v0/entity?id=k", b"v");
    client.get("/v0/entity?id=k");
    client.get("/v0/entity?id=absent");
    let metrics = String::from_utf8(client.get("/metrics").body()).unwrap();
    for line in [
        r#"kvorum_requests_total{route="/v0/entity",method="PUT",status="201"} 1"#,
        r#"kvorum_requests_total{route="/v0/entity",method="GET",status="200"} 1"#,
        r#"kvorum_requests_total{route="/v0/entity",method="GET",status="404"} 1"#,
        r#"kvorum_request_duration_seconds_count{route="/v0/entity",method="GET"} 2"#,
        r#"kvorum_queue_depth{queue="reads"} 0"#,
        "kvorum_write_waiting_bytes 0",
        r#"kvorum_memory_budget_bytes{part="cache"} 234881024"#,
        "# EOF",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line:?} in:\n{metrics}");
    }
    let last = r#"_bucket{le="8.589934592",route="/v0/entity",method="GET"} 2"#;
    assert!(metrics.contains(last), "no {last:?} in:\n{metrics}");
    for name in ["wal_syncs", "flushes", "compactions", "cache_hits", "slowed_writes", "wal_bytes"]
    {
        assert!(metrics.contains(&format!("\nkvorum_{name}_total ")), "no {name}");
    }
}
