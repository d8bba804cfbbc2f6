//! The dashboard's requests to a node: its files, snapshots as server-sent events, and the replicas
//! of a key. `tests/browser/dashboard.spec.js` tests the page itself in a browser.

use kit::raw::Client;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::process::{Node, TIMEOUT, wait_until};

/// Equals `MAX_STREAMS` in `src/http/ui/events.rs`.
const MAX_STREAMS: usize = 64;

/// A stream of server-sent events for the dashboard.
struct Events {
    client: Client,
    text: String,
}

impl Events {
    fn open(client: Client, target: &str) -> Self {
        let mut client = client;
        client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        let head = client.read_head().unwrap();
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        assert_eq!(head.header("cache-control"), Some("no-store"));
        Self { client, text: String::new() }
    }

    /// Reads the next event; returns its name, which may be empty, and its data.
    fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let name = field("event: ").unwrap_or_default().to_owned();
                let data = field("data: ").or(field("past: ")).unwrap();
                let data = serde_json::from_str(data).unwrap();
                self.text = rest.to_owned();
                return (name, data);
            }
            let piece = self.client.read_chunk().unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// Returns true if the stream ends with a last chunk, after any number of events.
    fn ends(mut self) -> bool {
        while let Ok(piece) = self.client.read_chunk() {
            if piece.is_none() {
                return true;
            }
        }
        false
    }
}

#[test]
fn the_page_is_part_of_the_program_and_may_load_nothing_else() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let page = client.get("/ui");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let text = String::from_utf8(page.body()).unwrap();
    assert!(!text.contains("http://") && !text.contains("https://"), "{text}");
    let mut wanted = vec!["/ui/".to_owned()];
    while let Some(path) = wanted.pop() {
        let got = client.get(&path);
        assert_eq!(got.status, 200, "{path}");
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"), "{path}");
        let text = String::from_utf8(got.body()).unwrap();
        // Follows the links of a page and the imports of a script.
        for word in text.split('"').filter(|word| word.ends_with(".js") || word.ends_with(".css")) {
            wanted.push(word.replace("./", "/ui/"));
        }
    }
    let frame = client.get("/ui/frame");
    let policy = frame.header("content-security-policy").unwrap();
    assert!(policy.starts_with("sandbox allow-scripts") && !policy.contains("same-origin"));
}

#[test]
fn dashboard_routes_refuse_other_methods_paths_and_queries() {
    let node = Node::start(&[]);
    let mut client = node.client();
    for (path, allow) in
        [("/ui", "GET, HEAD"), ("/ui/app.js", "GET, HEAD"), ("/ui/key?id=k", "GET, HEAD")]
    {
        assert_eq!(client.request("HEAD", path, b"").status, 200, "{path}");
        let refused = client.request("POST", path, b"");
        assert_eq!((refused.status, refused.header("allow")), (405, Some(allow)), "{path}");
        refused.json();
    }
    for method in ["HEAD", "PUT", "DELETE"] {
        let refused = client.request(method, "/ui/events", b"");
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET")), "{method}");
    }
    for path in ["/ui/../ui", "/ui/none.js", "/uix", "/ui//app.js", "/ui/index.html"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
    for (query, named) in [
        ("key", "\"id\" is missing"),
        ("key?id=", "\"id\" is empty"),
        ("key?id=k&ack=1", "unknown parameter \"ack\""),
        ("key?id=k&from=2", "from=2 must not exceed the number of nodes, 1"),
        ("key?id=k&from=x", "from=\"x\" is not"),
        ("key?id=%zz", "two hex digits"),
        ("events?local=yes", "local=\"yes\" is not"),
        ("events?x=1", "unknown parameter \"x\""),
    ] {
        let refused = client.get(&format!("/ui/{query}"));
        assert_eq!(refused.status, 400, "{query}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(named), "{query}: {detail}");
    }
}

#[test]
fn snapshots_come_by_themselves_and_count_requests() {
    let node = Node::start(&[]);
    let mut events = Events::open(node.client(), "/ui/events");
    let (name, own) = events.next();
    assert_eq!(name, "own");
    let puts = |snapshot: &Value| {
        let kinds = snapshot["snapshot"]["kinds"].as_array().unwrap();
        let put = kinds.iter().find(|kind| kind["kind"] == "put").unwrap();
        let latency = put["latency"].as_array().unwrap().iter().filter_map(Value::as_u64);
        (put["statuses"].to_string(), latency.sum::<u64>())
    };
    let first = loop {
        let (name, first) = events.next();
        if name.is_empty() {
            break first;
        }
    };
    assert_eq!(first["node"], own["node"]);
    assert_eq!(puts(&first), ("[]".to_owned(), 0));
    assert_eq!(node.client().put("/v0/entity?id=k", b"v").status, 201);
    let mut last = first;
    while puts(&last) != ("[[201,1]]".to_owned(), 1) {
        let (name, next) = events.next();
        if !name.is_empty() {
            continue;
        }
        assert!(next["snapshot"]["up_ms"].as_u64() > last["snapshot"]["up_ms"].as_u64());
        last = next;
    }
}

/// Counts the PUTs with status 201 in samples of a node. `fields` has the names of the values in a
/// sample.
fn past_puts(fields: &[String], seconds: &Value) -> u64 {
    let place = fields.iter().position(|field| field == "put.statuses.201").unwrap() as u64;
    let seconds = seconds.as_array().unwrap().iter();
    let values = seconds.flat_map(|second| second[2].as_array().unwrap());
    values.filter(|pair| pair[0] == place).map(|pair| pair[1].as_u64().unwrap()).sum()
}

/// Counts the PUTs in the samples of `node` that the stream sends, until the count reaches `all`.
/// Asserts that it is not exceeded.
fn count_past_puts(events: &mut Events, node: &str, all: u64) {
    let mut fields = Vec::new();
    let mut puts = 0;
    while puts < all {
        let (name, data) = events.next();
        if name != "past" || data["node"] != node {
            continue;
        }
        let past = &data["past"];
        if past["fields"].is_array() {
            fields = serde_json::from_value(past["fields"].clone()).unwrap();
        } else {
            puts += past_puts(&fields, &past["seconds"]);
        }
    }
    assert_eq!(puts, all);
}

#[test]
fn the_past_of_all_nodes_is_told_to_whoever_connects() {
    let cluster = Cluster::start(2, &[]);
    cluster.wait_until_settled();
    for key in 0..30 {
        let put = cluster.client(1).put(&format!("/v0/entity?id={key}"), b"v");
        assert_eq!(put.status, 201);
    }
    // The sample exists after its second has passed, even if no client was connected.
    wait_until("the sample of that second", || {
        let mut local = Events::open(cluster.client(1), "/ui/events?local=true");
        let fields: Vec<String> = loop {
            let (_, data) = local.next();
            if data["fields"].is_array() {
                break serde_json::from_value(data["fields"].clone()).unwrap();
            }
        };
        let names: std::collections::BTreeSet<_> = fields.iter().collect();
        assert_eq!(names.len(), fields.len(), "each value has a name of its own");
        let (mut puts, mut snapshots) = (0, 0);
        while snapshots < 2 && puts < 30 {
            let (_, data) = local.next();
            snapshots += usize::from(data["status"].is_object());
            if data["seconds"].is_array() {
                puts += past_puts(&fields, &data["seconds"]);
            }
        }
        puts == 30
    });
    count_past_puts(&mut Events::open(cluster.client(1), "/ui/events"), "n1", 30);
    count_past_puts(&mut Events::open(cluster.client(0), "/ui/events"), "n1", 30);
}

#[test]
fn one_stream_too_many_is_told_so_and_an_ended_one_makes_room() {
    let node = Node::start(&[]);
    let open = || Events::open(node.client(), "/ui/events?local=true");
    let mut streams: Vec<_> = (0..MAX_STREAMS).map(|_| open()).collect();
    let refused = node.client().get("/ui/events");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("all 64 dashboard streams"), "{detail}");
    assert_eq!(node.client().get("/ui").status, 200, "everything else goes on");
    let files = node.open_files();
    streams.clear();
    wait_until("that the node notices", || node.open_files() < files - MAX_STREAMS / 2);
    drop(open());
}

#[test]
fn an_open_dashboard_does_not_hold_up_the_end() {
    let node = Node::start(&[]);
    let mut open: Vec<_> = (0..3).map(|_| Events::open(node.client(), "/ui/events")).collect();
    for events in &mut open {
        events.next();
    }
    let begun = std::time::Instant::now();
    node.signal(Signal::TERM);
    for events in open {
        assert!(events.ends(), "the stream is ended, not cut off");
    }
    let (status, log) = node.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("still busy after"), "{log}");
    // A stopping node waits up to 10 s for requests in flight. The limit leaves a margin of the
    // same length for a busy machine.
    assert!(begun.elapsed() < TIMEOUT / 5, "it took {:?}", begun.elapsed());
}

#[test]
fn all_nodes_are_seen_through_one_and_a_lost_one_is_named() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let mut events = Events::open(cluster.client(0), "/ui/events");
    let (_, own) = events.next();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        let (name, data) = events.next();
        if name.is_empty() {
            assert_eq!(data["node"], data["snapshot"]["status"]["name"]);
            seen.insert(data["node"].as_str().unwrap().to_owned());
        }
    }
    assert!(seen.contains(own["node"].as_str().unwrap()));
    // On a busy machine other nodes may be reported as lost for a moment. So the closure skips all
    // reports but those about `node`.
    let lost = |events: &mut Events, node: &str| loop {
        let (name, data) = events.next();
        if name == "lost" && data["node"] == node {
            return data;
        }
    };
    cluster.kill(2);
    let dead = |data: &Value| !data["why"].as_str().unwrap().contains("no response");
    let first = loop {
        let told = lost(&mut events, "n2");
        if dead(&told) {
            break told;
        }
    };
    assert!(first["why"].as_str().unwrap().len() > 5, "{first}");
    let second = lost(&mut events, "n2");
    assert_eq!(second["since_ms"], first["since_ms"], "since when does not change");
    cluster.up(2);
    loop {
        let (name, data) = events.next();
        if name.is_empty() && data["node"] == "n2" {
            break;
        }
    }
    // A suspended process sends nothing, but keeps its connections open.
    cluster.signal(1, Signal::STOP);
    let silent = lost(&mut events, "n1");
    assert!(silent["why"].as_str().unwrap().contains("no response for 3 s"), "{silent}");
    cluster.signal(1, Signal::CONT);
}

#[test]
fn a_key_is_looked_up_on_each_replica() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let put = cluster.client(0).put("/v0/entity?id=k&ack=3&from=3", b"12345");
    assert_eq!(put.status, 201);
    let version = put.header("etag").unwrap().trim_matches('"').to_owned();
    let look = |cluster: &Cluster, query: &str| -> Value {
        let answer = cluster.client(1).get(&format!("/ui/key?{query}"));
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.body()).unwrap()
    };
    let placement = look(&cluster, "id=k");
    let replicas = placement["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 3);
    for replica in replicas {
        assert_eq!((&replica["holds"], &replica["authoritative"]), (&"value".into(), &true.into()));
        assert_eq!(
            (&replica["version"], &replica["copies"]),
            (&version.as_str().into(), &3.into())
        );
        assert_eq!(replica["value_bytes"], 5);
        assert_eq!((replica.get("expires_ms"), replica.get("expired")), (None, None));
        assert_eq!(replica["origin"], "n0");
    }
    assert_eq!(placement["value"], serde_json::json!({"text": "12345", "bytes": 5}));
    assert_eq!(placement["replicas"][0]["etag"], format!("\"{version}\""));
    assert_eq!(look(&cluster, "id=k&from=2")["replicas"].as_array().unwrap().len(), 2);
    for replica in look(&cluster, "id=%00absent")["replicas"].as_array().unwrap() {
        assert_eq!(replica["holds"], "absent");
    }
    cluster.client(0).put("/v0/entity?id=short&ack=3&ttl=1s", b"x");
    wait_until("the value's expiry", || {
        let placement = look(&cluster, "id=short");
        let has_expired = |replica: &Value| {
            assert!(replica["holds"] == "value" && replica["expires_ms"].is_u64(), "{replica}");
            replica["expired"].as_bool().unwrap()
        };
        placement["replicas"].as_array().unwrap().iter().all(has_expired)
    });
    for sum in 1..3 {
        let target = "/v0/entity?id=n&add=1";
        assert_eq!(
            cluster.client(0).request("POST", target, b"").body(),
            sum.to_string().as_bytes()
        );
    }
    let holds =
        |replica: &&serde_json::Value| replica["step"] == 2 && replica["ballot"].is_string();
    let counted = look(&cluster, "id=n");
    assert!(counted["replicas"].as_array().unwrap().iter().filter(holds).count() >= 2, "{counted}");
    cluster.kill(2);
    assert_eq!(cluster.client(0).delete("/v0/entity?id=k&ack=2&from=3").status, 202);
    for replica in look(&cluster, "id=k")["replicas"].as_array().unwrap() {
        let gone = replica["node"] == "n2";
        assert_eq!(replica["holds"], if gone { "unreachable" } else { "tombstone" }, "{replica}");
    }
}

#[test]
fn a_look_up_shows_the_begin_of_the_newest_value() {
    let node = Node::start(&[]);
    let mut client = node.client();
    let mut shown = |value: &[u8]| {
        let put = client.put("/v0/entity?id=k&ttl=1h", value);
        assert_eq!(put.status, 201);
        let told: Value = serde_json::from_slice(&client.get("/ui/key?id=k").body()).unwrap();
        let etag = put.header("etag").unwrap();
        assert_eq!(told["replicas"][0]["etag"], etag);
        told["value"].clone()
    };
    assert_eq!(shown(b""), serde_json::json!({"text": "", "bytes": 0}));
    assert_eq!(shown(b"\x00\xff"), serde_json::json!({"hex": "00ff", "bytes": 2}));
    let long = shown("a".repeat(5000).as_bytes());
    assert_eq!((&long["bytes"], long["text"].as_str().unwrap().len()), (&2048.into(), 2048));
    // The text ends after the last character that fits completely.
    let cut = shown(format!("a{}", "é".repeat(3000)).as_bytes());
    assert_eq!(cut["bytes"], 2047);
    assert_eq!(shown(&[b'x'; 20_000]), Value::Null, "it is not read");
    let deleted = |client: &mut Client| {
        client.delete("/v0/entity?id=k");
        serde_json::from_slice::<Value>(&client.get("/ui/key?id=k").body()).unwrap()
    };
    let told = deleted(&mut client);
    assert_eq!((told.get("value"), told["replicas"][0].get("etag")), (None, None));
}
