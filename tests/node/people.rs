//! `put`, `get`, `del`, `scan`, `status` against a real node: bytes, exit codes, what is said.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::thread;

use crate::process::{Node, kvorum};

/// Runs a command against the node at `url`, with this on its stdin.
fn run_at(url: &str, args: &[&str], input: &[u8]) -> Output {
    let mut command = kvorum();
    command.args(args).env("KVORUM_URL", url);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // One that takes no input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}

/// Runs a command that must do what it is told; its output.
fn done(node: &Node, args: &[&str]) -> Vec<u8> {
    let output = run_at(&url(node), args, b"");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", said(&output));
    assert_eq!(said(&output), "", "{args:?}");
    output.stdout
}

/// Runs a command that must not; what it says, on one line.
fn refused(node: &Node, code: i32, args: &[&str]) -> String {
    let output = run_at(&url(node), args, b"");
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{args:?}: {}", said(&output));
    assert_eq!(output.stdout, b"", "{args:?}");
    said(&output)
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn a_value_goes_in_and_comes_out_byte_by_byte() {
    let node = Node::start(&[]);
    assert_eq!(done(&node, &["put", "k", "two words\n"]), b"");
    assert_eq!(done(&node, &["get", "k"]), b"two words\n");
    assert_eq!(done(&node, &["get", "k", "--ack", "1", "--from", "1"]), b"two words\n");
    let bytes: Vec<u8> = (0..=255).cycle().take(400_000).collect();
    let output = run_at(&url(&node), &["put", "--escaped", r"\x00\xff\n%41", "-"], &bytes);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(done(&node, &["get", "--escaped", r"\x00\xff\n%41"]), bytes);
    let raw = node.client().get("/v0/entity?id=%00%ff%0a%2541");
    assert_eq!((raw.status, raw.body()), (200, bytes.clone()));
    let file = node.data.path().join("file");
    fs::write(&file, &bytes).unwrap();
    done(&node, &["put", "file", "--file", file.to_str().unwrap()]);
    assert_eq!(done(&node, &["get", "file"]), bytes);
    done(&node, &["put", "empty", ""]);
    assert_eq!(done(&node, &["get", "empty"]), b"");
    assert_eq!(done(&node, &["del", "k"]), b"");
    assert!(refused(&node, 1, &["get", "k"]).contains("no value under k"));
    done(&node, &["del", "k"]);
}

#[test]
fn json_holds_any_bytes() {
    let node = Node::start(&[]);
    let put = json(&done(&node, &["put", "k", "v", "--json"]));
    let got = json(&done(&node, &["get", "k", "--json"]));
    assert_eq!((&got["key"], &got["value"]), (&"k".into(), &"v".into()));
    assert!(put["version"].is_string() && put["version"] == got["version"]);
    done(&node, &["put", "--escaped", r"\xff", "ü"]);
    let got = json(&done(&node, &["get", "--escaped", r"\xff", "--json"]));
    assert_eq!((&got["key_base64"], &got["value"]), (&"/w==".into(), &"ü".into()));
    let problem = refused(&node, 1, &["get", "nothing", "--json"]);
    assert_eq!(json(problem.as_bytes())["status"], 404);
}

#[test]
fn problems_are_told_in_words() {
    let node = Node::start(&["--max-value", "10B"]);
    let large = refused(&node, 2, &["put", "k", "more than ten"]);
    assert!(large.contains("413") && large.contains("--max-value"), "{large}");
    assert!(large.contains("Nothing was written"), "{large}");
    let many = refused(&node, 2, &["get", "k", "--ack", "2"]);
    assert!(many.contains("400") && many.contains("ack=2"), "{many}");
    assert!(refused(&node, 2, &["get", ""]).contains("at least one byte"));
    assert!(refused(&node, 2, &["get", "--escaped", r"\q"]).contains("backslash"));
    assert!(refused(&node, 2, &["put", "k", "--file", "/nowhere"]).contains("/nowhere"));
    let address = node.address;
    drop(node);
    let output = run_at(&format!("http://{address}"), &["get", "k"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains(&address.to_string()), "{}", said(&output));
}

#[test]
fn a_scan_prints_lines_that_can_be_read_back() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for (key, value) in [("%00", "a%09b"), ("b", "plain"), ("c%0d", "x"), ("%ff", "y\nz\\")] {
        client.put(&format!("/v0/entity?id={key}"), value.as_bytes());
    }
    let all = done(&node, &["scan"]);
    let expected = "\\x00\ta%09b\nb\tplain\nc\\x0d\tx\n\\xff\ty\\nz\\\\\n";
    assert_eq!(String::from_utf8(all).unwrap(), expected);
    assert_eq!(done(&node, &["scan", "b", "--end", "c"]), b"b\tplain\n");
    assert_eq!(done(&node, &["scan", "b", "--limit", "1", "--local"]), b"b\tplain\n");
    assert_eq!(done(&node, &["scan", "--escaped", r"\xff\x00"]), b"");
    let lines = done(&node, &["scan", "c", "--json"]);
    let lines: Vec<_> = lines.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 3, "two items and the end");
    assert_eq!(json(lines[0])["key"], "c\r");
    assert_eq!(json(lines[1])["key_base64"], "/w==");
    assert!(refused(&node, 2, &["scan", "--ack", "9"]).contains("ack=9"));
}

#[test]
fn a_scan_that_breaks_off_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    for end in ["", "3\r\nb", "5\r\nb\nbcd\r\n"] {
        let listener = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nx\r\n";
            stream.write_all(format!("{head}{end}").as_bytes()).unwrap();
        });
        let output = run_at(&url, &["scan"], b"");
        server.join().unwrap();
        assert_eq!(output.status.code(), Some(2), "{end:?}");
        assert!(said(&output).contains("broke off"), "{}", said(&output));
        assert!(output.stdout.starts_with(b"a\tx\n"), "what came is printed");
    }
}

#[test]
fn status_shows_the_node() {
    let node = Node::start(&[]);
    done(&node, &["put", "a", "1"]);
    done(&node, &["put", "a", "2"]);
    done(&node, &["put", "b", "2"]);
    done(&node, &["del", "a"]);
    done(&node, &["del", "absent"]);
    let table = String::from_utf8(done(&node, &["status"])).unwrap();
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.contains(&url(&node)) && table.contains("  up  "), "{table}");
    let status = json(&done(&node, &["status", "--json"]));
    let row = &status["nodes"][0];
    assert_eq!((&row["url"], &row["up"]), (&url(&node).into(), &true.into()));
    assert_eq!(row["status"]["keys"], 1);
    assert!(row["status"]["disk_bytes"].as_u64().unwrap() > 0);
    let raw = node.client().get("/v0/status");
    assert_eq!((raw.status, raw.header("content-type")), (200, Some("application/json")));
    assert_eq!(json(&raw.body())["keys"], 1);
}
