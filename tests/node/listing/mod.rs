//! Ranges in the formats that mark their own end: through proxies, in pages, over HTTP/2, and with
//! `kvorum scan`.

mod paused;
mod relay;

use std::collections::BTreeMap;
use std::process::Output;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kit::raw::{Client, Response};
use relay::{Framing, Relay};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::http2::client::Http2;
use crate::process::{Node, kvorum, wait_until};

pub(crate) const LINES: &str = "application/x-ndjson";
const FRAMES: &str = "application/vnd.kvorum.items";

type Items = BTreeMap<Vec<u8>, Vec<u8>>;

/// Requests a range in the format `accept`.
pub(crate) fn list(client: &mut Client, query: &str, accept: &str) -> Response {
    client.send(format!(
        "GET /v0/entities?{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    ));
    client.response()
}

/// Parses a body of JSON lines; returns the items, and the last line separately.
fn lines(body: &[u8]) -> (Vec<Value>, Value) {
    assert!(body.ends_with(b"\n"), "the body was cut: {}", String::from_utf8_lossy(body));
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut lines: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let last = lines.pop().unwrap();
    (lines, last)
}

fn bytes_of(line: &Value, name: &str) -> Vec<u8> {
    match (line[name].as_str(), line[format!("{name}_base64")].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(encoded)) => STANDARD.decode(encoded).unwrap(),
        both => panic!("{name}: {both:?}"),
    }
}

fn keys_of(lines: &[Value]) -> Vec<String> {
    lines.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
}

/// Returns keys and values that look like separators, or need escapes in some format.
fn items_to_escape() -> Items {
    let mut items = Items::new();
    let mut add = |key: &[u8], value: &[u8]| items.insert(key.to_vec(), value.to_vec());
    add(b"plain", b"value");
    add(b"line\nfeed", b"\n");
    add(b"crlf\r\n\r\n0\r\n\r\n", b"0\r\n\r\n");
    add(b"\0", b"\0\0");
    add(b"\xff\xfe", b"\xff\x00\xfe");
    add("ü\u{2028}\"\\".as_bytes(), "\u{1}\u{7f}\"\\/\u{10ffff}".as_bytes());
    add(b"{\"end\":true}\n", b"{\"end\":true}\n");
    add(b"KVI\x01\x02", b"\x02");
    add(b"empty", b"");
    add(&[b'k'; 1024], b"the longest key");
    add(b"long text", &"äöü\n".repeat(30_000).into_bytes());
    let mixed: Vec<u8> = (0..70_000u32).map(|n| (n ^ (n >> 9)) as u8).collect();
    add(b"long bytes", &mixed);
    items
}

fn percent_encode(key: &[u8]) -> String {
    key.iter().map(|byte| format!("%{byte:02X}")).collect()
}

fn fill(client: &mut Client, items: &Items) {
    for (key, value) in items {
        assert_eq!(
            client.put(&format!("/v0/entity?id={}", percent_encode(key)), value).status,
            201
        );
    }
}

fn scan(url: &str, args: &[&str]) -> Output {
    kvorum().arg("scan").args(args).env("KVORUM_URL", url).output().unwrap()
}

/// Returns the items that `kvorum scan --json` prints.
fn scan_items(url: &str, args: &[&str]) -> Items {
    let output = scan(url, &[&["--json"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{url} {args:?}");
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let item = |line: &[u8]| {
        let line: Value = serde_json::from_slice(line).unwrap();
        assert!(line["version"].is_string(), "{line}");
        (bytes_of(&line, "key"), bytes_of(&line, "value"))
    };
    lines.map(item).collect()
}

#[test]
fn no_proxy_makes_other_items_of_a_range() {
    let node = Node::start(&["--sync", "never"]);
    let items = items_to_escape();
    fill(&mut node.client(), &items);
    let direct = format!("http://{}", node.address);
    assert!(scan_items(&direct, &[]) == items, "items came back changed");
    let plain = scan(&direct, &[]).stdout;
    let framings = [1, 7, 100_000].map(Framing::Chunks);
    for framing in framings.into_iter().chain([Framing::Length, Framing::Connection]) {
        let relay = Relay::to(node.address, framing.clone());
        assert!(scan_items(&relay.url(), &[]) == items, "{framing:?} changed items");
        assert!(scan(&relay.url(), &[]).stdout == plain, "{framing:?} changed lines");
        let paged = scan_items(&relay.url(), &["--limit", "1000"]);
        assert!(paged == items, "{framing:?} changed pages");
    }
}

#[test]
fn a_response_that_was_cut_is_refused_wherever_it_was_cut() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for key in ["a", "b%0a", "c"] {
        client.put(&format!("/v0/entity?id={key}"), b"v");
    }
    let whole = list(&mut client, "", FRAMES).body().len();
    for cut in (0..whole).step_by(3).chain([whole - 1]) {
        for framing in
            [Framing::CutInChunks(cut), Framing::CutByLength(cut), Framing::BrokenOff(cut)]
        {
            let relay = Relay::to(node.address, framing.clone());
            let output = scan(&relay.url(), &["--json"]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{framing:?}: {said}");
            assert!(said.contains("the range was interrupted after"), "{framing:?}: {said}");
            let items = output.stdout.iter().filter(|byte| **byte == b'\n').count();
            assert!(said.contains(&format!("after {items} items")), "{framing:?}: {said}");
            let (first, rest) = ("Run the command again", "The next ones: kvorum scan --escaped '");
            assert_eq!(said.contains(rest), items > 0, "{framing:?}: {said}");
            assert_eq!(said.contains(first), items == 0, "{framing:?}: {said}");
        }
    }
    // The command in the message prints the rest.
    let second = list(&mut client, "end=c", FRAMES).body().len();
    let relay = Relay::to(node.address, Framing::CutByLength(second));
    let output = scan(&relay.url(), &["--json", "--limit", "9"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let command = said.trim_end().split("kvorum ").last().unwrap();
    let url = relay.url();
    assert_eq!(command, format!(r"scan --escaped 'b\n\x00' --limit 7 --json --url {url}"));
    let rest = scan_items(&format!("http://{}", node.address), &["--escaped", r"b\n\x00"]);
    assert_eq!(rest, Items::from([(b"c".to_vec(), b"v".to_vec())]));
}

/// `scan` requests pages, and can be interrupted between two of them. It reconnects if the node has
/// closed the connection.
#[test]
fn a_scan_that_was_interrupted_between_pages_says_how_to_go_on() {
    let node = Node::start(&["--sync", "never", "--max-value", "1MiB"]);
    let mut client = node.client();
    for number in 0..20 {
        client.put(&format!("/v0/entity?id=key{number:02}"), &[b'v'; 20_000]);
    }
    let direct = format!("http://{}", node.address);
    let all = scan(&direct, &[]).stdout;
    let problem = "HTTP/1.1 504 No\r\nContent-Length: 62\r\n\r\n\
                   {\"type\":\"quorum-not-reached\",\"title\":\"No quorum\",\"status\":504}";
    let page = "HTTP/1.1 502 No\r\nContent-Length: 6\r\n\r\n<html>";
    for pages in [1, 2] {
        let relay = Relay::to(node.address, Framing::Hangup(pages));
        assert_eq!(scan(&relay.url(), &[]).stdout, all, "{pages} pages a connection");
    }
    for framing in [Framing::Refusal(1, problem), Framing::Refusal(2, page)] {
        let relay = Relay::to(node.address, framing.clone());
        let output = scan(&relay.url(), &["--limit", "18"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{framing:?}: {said}");
        let items = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert!((1..18).contains(&items), "{framing:?}: {items}");
        let last = said.lines().last().unwrap();
        assert!(last.contains(&format!("interrupted after {items} items")), "{framing:?}: {said}");
        let command = last.split("The next ones: kvorum scan ").nth(1).unwrap();
        let (left, last_key) = (18 - items, items - 1);
        let url = relay.url();
        let shown = format!(r"--escaped 'key{last_key:02}\x00' --limit {left} --url {url}");
        assert_eq!(command, shown, "{framing:?}");
        let next = format!(r"key{last_key:02}\x00");
        let rest = scan(&direct, &["--escaped", &next, "--limit", &left.to_string()]).stdout;
        let both = [output.stdout, rest].concat();
        let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
        assert!(all.starts_with(&both) && lines(&both) == 18, "{framing:?}");
    }
    // If nothing was printed, the message has no command for the rest.
    let relay = Relay::to(node.address, Framing::Hangup(0));
    let output = scan(&relay.url(), &["--limit", "18"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    // If all items were printed before the response was cut, the command succeeds.
    let whole = list(&mut client, "limit=1", FRAMES).body().len();
    let relay = Relay::to(node.address, Framing::CutByLength(whole - 1));
    let output = scan(&relay.url(), &["--limit", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_scan_takes_no_response_of_another_type() {
    let node = Node::start(&[]);
    node.client().put("/v0/entity?id=a", b"v");
    for media in ["application/octet-stream", "text/html", ""] {
        let relay = Relay::to(node.address, Framing::Typed(media));
        let output = scan(&relay.url(), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
        assert!(said.contains(&format!("the Content-Type \"{media}\" instead of {FRAMES}")));
        assert!(said.contains("of an earlier release"), "{said}");
    }
    let parameter = "Application/VND.kvorum.Items; v=1";
    let relay = Relay::to(node.address, Framing::Typed(parameter));
    assert_eq!(scan(&relay.url(), &[]).stdout, b"a\tv\n");
}

#[test]
fn lines_hold_any_item_and_say_where_they_end() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    let items = items_to_escape();
    fill(&mut client, &items);
    let lived = client.put("/v0/entity?id=plain&ttl=1h", b"value");
    let all = list(&mut client, "", LINES);
    assert_eq!((all.status, all.header("content-type")), (200, Some(LINES)));
    assert_eq!(all.header("vary"), Some("accept"));
    let (found, last) = lines(&all.body());
    assert_eq!(last, serde_json::json!({"end": true}));
    let read: Items =
        found.iter().map(|line| (bytes_of(line, "key"), bytes_of(line, "value"))).collect();
    assert!(read == items, "items came back changed");
    for line in &found {
        let got = client.get(&format!("/v0/entity?id={}", percent_encode(&bytes_of(line, "key"))));
        assert_eq!(line["etag"].as_str(), got.header("etag"));
        let expires =
            line["expires_ms"].as_u64().map(|ms| format!("{}.{:03}", ms / 1000, ms % 1000));
        assert_eq!(expires.as_deref(), got.header("kvorum-expires"));
    }
    assert!(lived.header("kvorum-expires").is_some());
    let (found, _) = lines(&list(&mut client, "values=false&start=plain", LINES).body());
    assert_eq!(found[0]["key"], "plain");
    assert!(
        found.iter().all(|line| line["etag"].is_string()
            && line["expires_ms"].is_u64() == (line["key"] == "plain"))
    );
    assert!(
        found.iter().all(|line| {
            line.as_object().unwrap().keys().all(|name| !name.starts_with("value"))
        })
    );
    // The line also has the tag of a conditional write.
    client.send(
        "PUT /v0/entity?id=plain HTTP/1.1\r\nHost: localhost\r\nIf-Match: *\r\n\
         Content-Length: 1\r\n\r\nw",
    );
    let put = client.response();
    let (found, _) = lines(&list(&mut client, "prefix=plain", LINES).body());
    assert_eq!((found.len(), found[0]["etag"].as_str()), (1, put.header("etag")));
}

#[test]
fn a_bare_request_gets_chunks_and_no_parameters_of_the_others() {
    let node = Node::start(&[]);
    let mut client = node.client();
    client.put("/v0/entity?id=k", b"v");
    for accept in ["*/*", "text/html,application/xhtml+xml,*/*;q=0.8", "application/*", "x/y"] {
        let range = list(&mut client, "start=a", accept);
        assert_eq!(range.header("content-type"), Some("application/octet-stream"), "{accept}");
        assert_eq!(range.chunks, [b"k\nv"]);
        assert_eq!(range.header("vary"), Some("accept"));
        for query in
            ["start=a&prefix=k", "start=a&limit=1", "start=a&after=x", "start=a&values=true"]
        {
            let refused = list(&mut client, query, accept);
            assert_eq!(refused.status, 400, "{query}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(&format!("send Accept: {LINES} or Accept: {FRAMES}")));
        }
        let refused = list(&mut client, "", accept);
        assert!(refused.json()["detail"].as_str().unwrap().contains("\"start\" is missing"));
    }
    for (query, named) in [
        ("limit=0", "limit=0 is out of range 1..10000"),
        ("limit=10001", "limit=10001 is out of range 1..10000"),
        ("limit=99999999999", "limit=99999999999 must not exceed 10000"),
        ("limit=x", "limit=\"x\" is not a decimal number"),
        ("values=no", "values=\"no\" is not a boolean"),
        ("prefix=", "\"prefix\" is empty"),
        ("start=", "\"start\" is empty"),
        ("after=", "after= is damaged"),
        ("after=AAAA", "after= is damaged"),
        ("prefix=a+b", "write %2B for a plus, %20 for a space"),
        ("limit=1&limit=1", "duplicate parameter \"limit\""),
    ] {
        for accept in [LINES, FRAMES] {
            let refused = list(&mut client, query, accept);
            assert_eq!(refused.status, 400, "{query}");
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(named), "{query}: {detail}");
        }
    }
}

#[test]
fn a_prefix_is_all_keys_that_begin_with_it() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for key in ["a", "shop", "shop/", "shop/a", "shop/b", "shop0", "z", "%ff", "%ff%ff", "%ff%ffa"]
    {
        client.put(&format!("/v0/entity?id={key}"), b"v");
    }
    let mut keys = |query: &str| {
        let (found, last) = lines(&list(&mut client, query, LINES).body());
        assert_eq!(last["end"], true, "{query}");
        found.iter().map(|line| percent_encode(&bytes_of(line, "key"))).collect::<Vec<_>>()
    };
    let own = |keys: &[&[u8]]| keys.iter().map(|key| percent_encode(key)).collect::<Vec<_>>();
    assert_eq!(keys("prefix=shop/"), own(&[b"shop/", b"shop/a", b"shop/b"]));
    assert_eq!(keys("prefix=shop/&start=shop/b"), own(&[b"shop/b"]));
    assert_eq!(keys("prefix=shop/&start=a&end=shop/b"), own(&[b"shop/", b"shop/a"]));
    assert_eq!(keys("prefix=shop/&end=z"), own(&[b"shop/", b"shop/a", b"shop/b"]));
    assert_eq!(keys("prefix=%ff%ff"), own(&[b"\xff\xff", b"\xff\xffa"]));
    assert_eq!(keys("prefix=shop/&start=z"), own(&[]));
    assert_eq!(keys("end=shop"), own(&[b"a"]));
    let url = format!("http://{}", node.address);
    let printed = |args: &[&str]| String::from_utf8(scan(&url, args).stdout).unwrap();
    assert_eq!(printed(&["--prefix", "shop/"]), "shop/\tv\nshop/a\tv\nshop/b\tv\n");
    assert_eq!(printed(&["--prefix", "shop/", "--limit", "2"]), "shop/\tv\nshop/a\tv\n");
    assert_eq!(printed(&["--escaped", "--prefix", r"\xff\xff"]), "\\xff\\xff\tv\n\\xff\\xffa\tv\n");
    let help = String::from_utf8(scan(&url, &["--help"]).stdout).unwrap();
    assert!(help.contains("--prefix <TEXT>"), "{help}");
}

/// Returns the query of the next page, from the Link header; `None` without such a header.
fn next_of(response: &Response) -> Option<String> {
    let link = response.header("link")?;
    let target = link.strip_prefix("</v0/entities?").unwrap();
    Some(target.strip_suffix(">; rel=\"next\"").unwrap().to_owned())
}

/// Follows the links of pages; returns the keys of each page. Calls `between` after each page.
fn walk(
    client: &mut Client,
    query: &str,
    mut between: impl FnMut(&mut Client, &[String]),
) -> Vec<Vec<String>> {
    let (mut pages, mut next) = (Vec::new(), Some(query.to_owned()));
    while let Some(query) = next {
        let page = list(client, &query, LINES);
        assert_eq!(page.status, 200, "{query}: {}", String::from_utf8_lossy(&page.body()));
        let (found, last) = lines(&page.body());
        next = next_of(&page);
        match (&next, last["next"].as_str()) {
            (Some(next), Some(cursor)) => {
                assert!(next.ends_with(&format!("&after={cursor}")), "{next} {cursor}");
            }
            (None, None) => assert_eq!(last, serde_json::json!({"end": true})),
            both => panic!("{both:?}"),
        }
        let keys = keys_of(&found);
        between(client, &keys);
        pages.push(keys);
    }
    pages
}

#[test]
fn pages_are_walked_to_the_end_while_keys_come_and_go() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    let key = |number: usize| format!("key{number:03}");
    for number in 0..100 {
        client.put(&format!("/v0/entity?id={}", key(number)), b"v");
    }
    client.put("/v0/entity?id=other", b"v");
    let pages = walk(&mut client, "prefix=key&limit=10", |_, _| {});
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [10; 10], "the last has no next");
    assert_eq!(pages.concat(), (0..100).map(key).collect::<Vec<_>>());
    assert_eq!(walk(&mut client, "prefix=key&limit=10000", |_, _| {}).len(), 1);
    assert_eq!(walk(&mut client, "prefix=none&limit=3", |_, _| {}), [Vec::<String>::new()]);
    // After each page, deletes its last key, and writes two new keys: right after the deleted key,
    // and right after the page's first key.
    let seen = walk(&mut client, "prefix=key&limit=7", |client, keys| {
        let Some(last) = keys.last().filter(|last| last.len() == 6) else { return };
        client.delete(&format!("/v0/entity?id={last}"));
        client.put(&format!("/v0/entity?id={last}%00"), b"v");
        client.put(&format!("/v0/entity?id={}%00", percent_encode(keys[0].as_bytes())), b"v");
    });
    let seen = seen.concat();
    let once: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(once.len(), seen.len(), "no key comes twice");
    assert!(seen.is_sorted());
    for number in 0..100 {
        assert!(seen.contains(&key(number)), "{number} was there all the time, until it was seen");
    }
    assert!(seen.iter().filter(|key| key.ends_with('\0')).count() >= 10, "{seen:?}");
}

#[test]
fn a_page_is_bounded_in_bytes_too() {
    let node = Node::start(&["--sync", "never", "--max-value", "1MiB"]);
    let mut client = node.client();
    for number in 0..20 {
        let value = vec![b'v'; if number == 7 { 500_000 } else { 20_000 }];
        client.put(&format!("/v0/entity?id=key{number:02}"), &value);
    }
    let pages = walk(&mut client, "limit=1000", |_, _| {});
    assert!(pages.iter().all(|page| (1..=3).contains(&page.len())), "{pages:?}");
    assert_eq!(pages.concat().len(), 20);
    let keys_alone = walk(&mut client, "limit=1000&values=false", |_, _| {});
    assert_eq!(keys_alone.len(), 1, "what is not sent is not counted");
    let url = format!("http://{}", node.address);
    assert_eq!(
        scan_items(&url, &["--limit", "19"]).len(),
        19,
        "a scan reads as many pages as it takes"
    );
    let metrics = || String::from_utf8(node.client().get("/metrics").body()).unwrap();
    wait_until("giving memory back", || metrics().contains("\nkvorum_range_page_bytes 0\n"));
}

#[test]
fn a_cursor_is_good_for_its_own_range_only() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for key in ["a1", "a2", "a3", "b1", "b2", "b3"] {
        client.put(&format!("/v0/entity?id={key}"), b"v");
    }
    let page = list(&mut client, "prefix=a&limit=2", LINES);
    let cursor = lines(&page.body()).1["next"].as_str().unwrap().to_owned();
    let rest = list(&mut client, &format!("prefix=a&after={cursor}"), LINES);
    assert_eq!(keys_of(&lines(&rest.body()).0), ["a3"], "without a limit to the end of the prefix");
    let rest = list(&mut client, &format!("start=a&end=b&after={cursor}&limit=9"), LINES);
    assert_eq!(keys_of(&lines(&rest.body()).0), ["a3"], "the same range in other words");
    for query in ["prefix=b", "prefix=a1", "", "start=a", "prefix=a&end=a2", "start=a2&prefix=a"] {
        let and = if query.is_empty() { "" } else { "&" };
        let refused = list(&mut client, &format!("{query}{and}after={cursor}"), LINES);
        assert_eq!(refused.status, 400, "{query}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("after= is the cursor of another range: repeat"), "{detail}");
    }
    let changed = |place: usize| {
        let mut bytes = cursor.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    for damaged in (0..cursor.len()).map(changed).chain([cursor[1..].to_owned(), "%00".to_owned()])
    {
        let refused = list(&mut client, &format!("prefix=a&after={damaged}"), LINES);
        assert_eq!(refused.status, 400, "{damaged}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("after= is "), "{detail}");
    }
}

#[test]
fn pages_go_on_over_any_number_of_deleted_keys() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for first in (0..30_000).step_by(500) {
        let requests = (first..first + 500).map(|number| {
            format!("DELETE /v0/entity?id=key{number:06} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        });
        client.send(requests.collect::<String>());
        for _ in 0..500 {
            assert_eq!(client.response().status, 202);
        }
    }
    client.put("/v0/entity?id=last", b"v");
    let pages = walk(&mut client, "limit=10", |_, _| {});
    assert_eq!(pages.concat(), ["last"]);
}

#[test]
fn a_cluster_lists_ten_thousand_items_with_a_node_down() {
    let mut cluster = Cluster::start(3, &["--sync", "never"]);
    cluster.wait_until_settled();
    let mut items = Items::new();
    let mut client = cluster.client(0);
    for first in (0..10_000).step_by(500) {
        let put = |number: usize| {
            format!(
                "PUT /v0/entity?id=k%0A{number:05} HTTP/1.1\r\nHost: localhost\r\n\
                 Content-Length: 5\r\n\r\n{number:05}"
            )
        };
        client.send((first..first + 500).map(put).collect::<String>());
        for number in first..first + 500 {
            assert_eq!(client.response().status, 201);
            let (key, value) = (format!("k\n{number:05}"), format!("{number:05}"));
            items.insert(key.into_bytes(), value.into_bytes());
        }
    }
    cluster.kill(2);
    let relay = Relay::to(cluster.address(1), Framing::Chunks(1_000));
    assert!(scan_items(&relay.url(), &[]) == items);
    assert!(scan_items(&relay.url(), &["--limit", "10000", "--prefix", "k\n"]) == items);
    let pages = walk(&mut cluster.client(0), "limit=3000&values=false", |_, _| {});
    assert_eq!(pages.concat().len(), 10_000);
    let refused = list(&mut cluster.client(0), "limit=10&ack=3&from=3", LINES);
    assert_eq!(refused.status, 504);
    let output = scan(&relay.url(), &["--limit", "10", "--ack", "3"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]));
}

#[test]
fn streams_of_http2_tell_items_apart_too() {
    let node = Node::start(&["--sync", "never"]);
    let items = items_to_escape();
    fill(&mut node.client(), &items);
    let client = Http2::connect(node.address);
    let list = |query: &str, accept: &str| {
        let head = client.head("GET", &format!("/v0/entities?{query}")).header("accept", accept);
        client.send(head.body(()).unwrap(), b"").unwrap()
    };
    let all = list("", LINES);
    let (found, last) = lines(&all.body);
    assert_eq!((last["end"].as_bool(), found.len()), (Some(true), items.len()));
    let page = list("limit=2&values=false", LINES);
    let (found, last) = lines(&page.body);
    assert_eq!(found.len(), 2);
    let link = page.headers["link"].to_str().unwrap();
    assert!(link.contains(&format!("after={}>", last["next"].as_str().unwrap())), "{link}");
    let frames = list("", FRAMES);
    assert_eq!(frames.headers["content-type"], FRAMES);
    assert!(frames.body.starts_with(b"KVI\x01") && frames.body.ends_with(b"\x02"));
    assert_eq!(list("start=plain&end=plain%00", "*/*").body, b"plain\nvalue");
}
