//! `put`, `get`, `del`, `scan` and `status` against a real node: output, exit codes, messages.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::process::{Node, TIMEOUT, kvorum, wait_until};

/// Runs a command against the node at `url`, with `input` as its stdin.
pub(crate) fn run_at(url: &str, args: &[&str], input: &[u8]) -> Output {
    let mut command = kvorum();
    command.args(args).env("KVORUM_URL", url);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Writing fails if the command has exited without reading its stdin.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

pub(crate) fn url(node: &Node) -> String {
    format!("http://{}", node.address)
}

/// Runs a command that must succeed without a message; returns its stdout.
pub(crate) fn run_silently(node: &Node, args: &[&str]) -> Vec<u8> {
    let output = run_at(&url(node), args, b"");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr_text(&output));
    assert_eq!(stderr_text(&output), "", "{args:?}");
    output.stdout
}

/// Runs a command that must fail with exit code `code`; returns its message, which is one line.
fn run_refused(node: &Node, code: i32, args: &[&str]) -> String {
    let output = run_at(&url(node), args, b"");
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr_text(&output));
    assert_eq!(stderr_text(&output).lines().count(), 1, "{args:?}: {}", stderr_text(&output));
    assert_eq!(output.stdout, b"", "{args:?}");
    stderr_text(&output)
}

pub(crate) fn stderr_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Runs a command in a shell that redirects its streams; returns its exit code and message.
pub(crate) fn run_redirected(node: &Node, args: &str, streams: &str) -> (Option<i32>, String) {
    let mut command = kvorum();
    let shell = format!("exec \"$0\" {args} {streams}");
    let program = command.get_program().to_owned();
    let mut sh = std::process::Command::new("sh");
    sh.arg("-c").arg(shell).arg(program).env("KVORUM_URL", url(node));
    for (name, value) in command.stdin(Stdio::null()).get_envs() {
        match value {
            Some(value) => sh.env(name, value),
            None => sh.env_remove(name),
        };
    }
    let output = sh.output().unwrap();
    (output.status.code(), stderr_text(&output))
}

#[test]
fn a_change_that_was_made_is_said_also_if_its_result_can_not_be_printed() {
    let node = Node::start(&[]);
    let streams = ">/dev/full";
    for (args, done) in [
        ("add visits 5", "the write was applied"),
        ("add visits 5 --json", "the write was applied"),
        ("put k v --json", "the write was applied"),
        ("put k v --receipt", "the write was applied"),
        ("del k --json", "the write was applied"),
        ("token create --name shop", "the token shop was created"),
        ("token revoke shop", "the token was revoked"),
        ("quota set q --hard 1MiB", "the quota was set"),
        ("quota remove q", "the quota was removed"),
        ("compact", "was requested"),
    ] {
        let (code, said) = run_redirected(&node, args, streams);
        assert_eq!(code, Some(2), "{args} {streams}: {said}");
        assert_eq!(said.lines().count(), 1, "{args} {streams}: {said}");
        assert!(said.contains("stdout: ") && said.contains(done), "{args} {streams}: {said}");
    }
    // The message has the command that revokes the token.
    let (_, said) = run_redirected(&node, "token create --name lost", streams);
    let revoke = said.split("kvorum ").nth(1).unwrap_or_default();
    let revoke = revoke.split(", then").next().unwrap();
    assert!(revoke.starts_with("token revoke "), "{said}");
    run_silently(&node, &revoke.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run_silently(&node, &["get", "visits"]), b"10");
    let dir = node.data.path().to_str().unwrap();
    let (code, said) = run_redirected(&node, &format!("cert ca --dir {dir}/certs"), ">/dev/full");
    assert_eq!(code, Some(1));
    assert!(said.contains("the files were made"), "{said}");
}

#[test]
fn a_refused_read_does_not_speak_of_writes() {
    let body = r#"{"type":"misdirected-request","title":"T","status":421,"outcome":"none"}"#;
    let answer = format!("HTTP/1.1 421 M\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for (args, is_write) in [
        (&["get", "k"][..], false),
        (&["get", "k", "l"], false),
        (&["scan"], false),
        (&["status"], false),
        (&["cluster", "plan", "--replicas", "2"], false),
        (&["put", "k", "v"], true),
        (&["add", "k"], true),
        (&["del", "k"], true),
        (&["token", "create", "--name", "t"], true),
    ] {
        let (_, output) = run_against_answer(&answer, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = stderr_text(&output);
        assert!(said.contains(" 421: T"), "{args:?}: {said}");
        assert_eq!(said.contains("Nothing was written"), is_write, "{args:?}: {said}");
    }
}

#[test]
fn an_empty_prefix_is_that_of_all_keys() {
    let node = Node::start(&[]);
    run_silently(&node, &["put", "k", "v"]);
    for args in [&["scan", "--prefix", ""][..], &["scan", ""], &["scan", "", "--prefix", ""]] {
        assert_eq!(run_silently(&node, args), b"k\tv\n", "{args:?}");
    }
    let said = run_refused(&node, 2, &["scan", "--end", ""]);
    assert!(said.contains("--end must not be empty"), "{said}");
}

#[test]
fn a_closed_stdin_is_refused_as_a_value() {
    let node = Node::start(&[]);
    run_silently(&node, &["put", "k", "hello"]);
    let (code, said) = run_redirected(&node, "put k -", "<&-");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("stdin: it is closed") && said.contains("Nothing was written"), "{said}");
    assert_eq!(run_silently(&node, &["get", "k"]), b"hello");
    assert_eq!(run_redirected(&node, "put k -", "</dev/null").0, Some(0));
    assert_eq!(run_silently(&node, &["get", "k"]), b"");
}

#[test]
fn a_value_goes_in_and_comes_out_byte_by_byte() {
    let node = Node::start(&[]);
    assert_eq!(run_silently(&node, &["put", "k", "two words\n"]), b"");
    assert_eq!(run_silently(&node, &["get", "k"]), b"two words\n");
    assert_eq!(run_silently(&node, &["get", "k", "--ack", "1", "--from", "1"]), b"two words\n");
    let bytes: Vec<u8> = (0..=255).cycle().take(400_000).collect();
    let output = run_at(&url(&node), &["put", "--escaped", r"\x00\xff\n%41", "-"], &bytes);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    assert_eq!(run_silently(&node, &["get", "--escaped", r"\x00\xff\n%41"]), bytes);
    let raw = node.client().get("/v0/entity?id=%00%ff%0a%2541");
    assert_eq!((raw.status, raw.body()), (200, bytes.clone()));
    let file = node.data.path().join("file");
    fs::write(&file, &bytes).unwrap();
    run_silently(&node, &["put", "file", "--file", file.to_str().unwrap()]);
    assert_eq!(run_silently(&node, &["get", "file"]), bytes);
    run_silently(&node, &["put", "empty", ""]);
    assert_eq!(run_silently(&node, &["get", "empty"]), b"");
    assert_eq!(run_silently(&node, &["del", "k"]), b"");
    assert!(run_refused(&node, 1, &["get", "k"]).contains("key not found: k"));
    run_silently(&node, &["del", "k"]);
}

#[test]
fn json_holds_any_bytes() {
    let node = Node::start(&[]);
    let put = json(&run_silently(&node, &["put", "k", "v", "--json"]));
    let got = json(&run_silently(&node, &["get", "k", "--json"]));
    assert_eq!((&got["key"], &got["value"]), (&"k".into(), &"v".into()));
    assert!(put["version"].is_string() && put["version"] == got["version"]);
    run_silently(&node, &["put", "--escaped", r"\xff", "ü"]);
    let got = json(&run_silently(&node, &["get", "--escaped", r"\xff", "--json"]));
    assert_eq!((&got["key_base64"], &got["value"]), (&"/w==".into(), &"ü".into()));
    let problem = run_refused(&node, 1, &["get", "nothing", "--json"]);
    let problem = json(problem.as_bytes());
    assert_eq!((&problem["status"], &problem["key"]), (&404.into(), &"nothing".into()));
}

#[test]
fn several_keys_are_read_and_deleted_at_once() {
    let node = Node::start(&[]);
    for (key, value) in [("a", "1"), ("b", "two\nlines"), ("c", "3")] {
        run_silently(&node, &["set", key, value]);
    }
    assert_eq!(run_silently(&node, &["get", "b", "a"]), b"b\ttwo\\nlines\na\t1\n");
    let output = run_at(&url(&node), &["get", "a", "x", "c"], b"");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"a\t1\nc\t3\n"[..]));
    assert_eq!(stderr_text(&output), "kvorum: key not found: x\n");
    let long = "x".repeat(2000);
    let output = run_at(&url(&node), &["get", "a", &long, "c"], b"");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b"a\t1\n"[..]));
    assert!(
        stderr_text(&output).contains("of 3 keys none behind it was read"),
        "{}",
        stderr_text(&output)
    );
    let lines = run_silently(&node, &["get", "--json", "a", "c"]);
    let lines: Vec<_> = lines.trim_ascii_end().split(|byte| *byte == b'\n').map(json).collect();
    assert_eq!([&lines[0]["value"], &lines[1]["value"]], ["1", "3"]);
    let version = lines[0]["version"].as_str().unwrap();
    let one = run_refused(&node, 2, &["del", "a", "b", "--if-match", version]);
    assert!(one.contains("good for one key"), "{one}");
    run_refused(&node, 2, &["del", "a", "b", "--idempotency-key", "w"]);
    let output = run_at(&url(&node), &["del", "a", "x", "b", "--if-match", "*"], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_text(&output).contains("stopped at x: 1 of 3 keys were deleted before it"));
    assert_eq!(run_silently(&node, &["ls"]), b"b\ttwo\\nlines\nc\t3\n");
    assert_eq!(run_silently(&node, &["rm", "b", "c", "none"]), b"");
    assert_eq!(run_silently(&node, &["scan"]), b"");
    assert_eq!(run_silently(&node, &["incr", "n"]), b"1\n");
    assert_eq!(run_silently(&node, &["incr", "n", "--", "-3"]), b"-2\n");
    let help = String::from_utf8(run_silently(&node, &["--help"])).unwrap();
    let named = |name: &str| help.lines().any(|line| line.trim_start().starts_with(name));
    assert!(named("put ") && !["set ", "rm ", "ls ", "incr "].into_iter().any(named), "{help}");
}

#[test]
fn help_groups_connection_flags_and_usage_omits_them() {
    let node = Node::start(&[]);
    for command in ["put", "get", "del", "add", "scan", "status", "repair", "compact"] {
        let help = String::from_utf8(run_silently(&node, &[command, "--help"])).unwrap();
        let (own, connection) = help.split_once("\nConnection:\n").unwrap();
        let has = |part: &str, flag: &str| part.lines().any(|l| l.trim_start().starts_with(flag));
        assert!(has(own, "--json") && !has(connection, "--json"), "{help}");
        for flag in ["--url <", "--token-file <", "--ca-file <", "--timeout <"] {
            assert!(has(connection, flag) && !has(own, flag), "{command} {flag}: {help}");
        }
    }
    for args in [&["get"][..], &["put", "k"], &["del"], &["get", "k", "--nonsense"]] {
        let output = run_at(&url(&node), args, b"");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = stderr_text(&output);
        let usage = said.lines().find(|line| line.starts_with("Usage: ")).unwrap();
        assert!(!usage.contains("--url"), "{args:?}: {usage}");
        assert!(said.starts_with("error: "), "{said}");
    }
}

#[test]
fn a_value_with_a_time_to_live_is_a_value_like_any_other() {
    let node = Node::start(&["--max-ttl", "1d"]);
    assert_eq!(run_silently(&node, &["put", "k", "v", "--ttl", "90s"]), b"");
    assert_eq!(run_silently(&node, &["get", "k"]), b"v", "nothing besides");
    assert_eq!(run_silently(&node, &["scan"]), b"k\tv\n");
    let got = json(&run_silently(&node, &["get", "k", "--json"]));
    let put =
        json(&run_silently(&node, &["put", "k", "7", "--ttl", "1h", "--if-match", "*", "--json"]));
    let later = put["expires_ms"].as_u64().unwrap() - got["expires_ms"].as_u64().unwrap();
    assert!(later > 3_000_000, "{later} ms");
    let sum = json(&run_silently(&node, &["add", "k", "1", "--json"]));
    assert_eq!((&sum["sum"], &sum["expires_ms"]), (&8.into(), &put["expires_ms"]));
    let sum = json(&run_silently(&node, &["add", "k", "1", "--ttl", "1s", "--json"]));
    assert!(sum["expires_ms"].as_u64() < put["expires_ms"].as_u64());
    wait_until("its expiry", || run_at(&url(&node), &["get", "k"], b"").status.code() == Some(1));
    assert_eq!(run_silently(&node, &["scan"]), b"");
    let forever = json(&run_silently(&node, &["put", "k", "v", "--json"]));
    assert_eq!(forever.get("expires_ms"), None);
    let long = run_refused(&node, 2, &["put", "k", "v", "--ttl", "2d"]);
    assert!(long.contains("ttl=2d is more than this node's --max-ttl: 1d"), "{long}");
    let wrong = run_at(&url(&node), &["put", "k", "v", "--ttl", "1.5h"], b"");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr_text(&wrong).contains("\"1.5h\" is not a time to live: write a whole number"));
}

#[test]
fn problems_are_told_in_words() {
    let node = Node::start(&["--max-value", "10B"]);
    let large = run_refused(&node, 2, &["put", "k", "more than ten"]);
    assert!(large.contains("413") && large.contains("--max-value"), "{large}");
    assert!(large.contains("Nothing was written"), "{large}");
    let many = run_refused(&node, 2, &["get", "k", "--ack", "2"]);
    assert!(many.contains("400") && many.contains("ack=2"), "{many}");
    assert!(run_refused(&node, 2, &["get", ""]).contains("must not be empty"));
    assert!(run_refused(&node, 2, &["get", "--escaped", r"\q"]).contains("backslash"));
    assert!(run_refused(&node, 2, &["put", "k", "--file", "/nowhere"]).contains("/nowhere"));
    let address = node.address;
    drop(node);
    let output = run_at(&format!("http://{address}"), &["get", "k"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_text(&output).contains(&address.to_string()), "{}", stderr_text(&output));
}

#[test]
fn a_scan_prints_lines_that_can_be_read_back() {
    let node = Node::start(&["--sync", "never"]);
    let mut client = node.client();
    for (key, value) in [("%00", "a%09b"), ("b", "plain"), ("c%0d", "x"), ("%ff", "y\nz\\")] {
        client.put(&format!("/v0/entity?id={key}"), value.as_bytes());
    }
    let all = run_silently(&node, &["scan"]);
    let expected = "\\x00\ta%09b\nb\tplain\nc\\x0d\tx\n\\xff\ty\\nz\\\\\n";
    assert_eq!(String::from_utf8(all).unwrap(), expected);
    assert_eq!(run_silently(&node, &["scan", "b", "--end", "c"]), b"b\tplain\n");
    assert_eq!(run_silently(&node, &["scan", "b", "--limit", "1", "--local"]), b"b\tplain\n");
    assert_eq!(run_silently(&node, &["scan", "--escaped", r"\xff\x00"]), b"");
    let lines = run_silently(&node, &["scan", "c", "--json"]);
    let lines: Vec<_> = lines.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 3, "two items and the end");
    assert_eq!(json(lines[0])["key"], "c\r");
    assert_eq!(json(lines[1])["key_base64"], "/w==");
    assert!(run_refused(&node, 2, &["scan", "--ack", "9"]).contains("ack=9"));
}

/// A line with a zero-width or bidirectional character would look different from its bytes.
#[test]
fn characters_that_nobody_sees_are_written_out() {
    let node = Node::start(&["--name", "safe\u{202e}evil", "--greet", "--log-format", "json"]);
    let status = String::from_utf8(run_silently(&node, &["status"])).unwrap();
    assert!(status.contains("safe\\u202eevil"), "{status}");
    let status = run_silently(&node, &["status", "--json"]);
    assert_eq!(json(&status)["nodes"][0]["name"], "safe\u{202e}evil");
    assert!(!String::from_utf8(status).unwrap().contains('\u{202e}'));

    run_silently(&node, &["put", "k\u{200b}", "v"]);
    let scanned = run_silently(&node, &["scan"]);
    assert_eq!(scanned, b"k\\xe2\\x80\\x8b\tv\n");
    assert_eq!(run_silently(&node, &["get", "--escaped", "k\\xe2\\x80\\x8b"]), b"v");
    run_silently(&node, &["quota", "set", "q\u{200b}", "--soft", "1MiB"]);
    let quotas = run_silently(&node, &["quota", "list"]);
    assert!(quotas.starts_with(b"\"q\\u{200b}\""), "{quotas:?}");
    let quotas = run_silently(&node, &["quota", "list", "--json"]);
    assert_eq!(json(&quotas)["quotas"][0]["prefix"], "q\u{200b}");

    let lines = run_silently(&node, &["scan", "--json"]);
    assert!(!String::from_utf8(lines).unwrap().contains('\u{200b}'));
    // U+0085 ends a line, and U+009B begins a control sequence that a terminal executes.
    let unseen = "\u{7f}\u{85}\u{9b}2J\u{2028}\u{2029}\u{202e}\u{200b}";
    run_silently(&node, &["put", unseen, unseen]);
    for command in [&["scan", unseen, "--json"][..], &["get", unseen, "--json"]] {
        let line = run_silently(&node, command);
        assert!(line.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "{line:?}");
        let item = json(&line);
        assert_eq!((&item["key"], &item["value"]), (&unseen.into(), &unseen.into()));
    }
    let why = run_refused(&node, 2, &["cluster", "plan", "--remove", "a\u{202e}"]);
    assert!(!why.contains('\u{202e}'), "{why}");
    node.signal(rustix::process::Signal::TERM);
    let (_, log) = node.wait();
    assert!(log.contains("safe\\u202eevil") && !log.contains('\u{202e}'), "{log}");
}

#[test]
fn a_scan_that_breaks_off_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // An item with the key "a" and the value "x"; it is sent in a chunk of 19 bytes.
    let item = b"\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\0ax";
    for end in [&b""[..], b"3\r\nb", b"5\r\nb\nbcd\r\n", b"0\r\n\r\n", b"1\r\n\x02\r\n"] {
        let listener = listener.try_clone().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.kvorum.items\r\n\
                Transfer-Encoding: chunked\r\n\r\n4\r\nKVI\x01\r\n13\r\n";
            stream.write_all(&[head.as_bytes(), item, b"\r\n", end].concat()).unwrap();
        });
        let output = run_at(&url, &["scan"], b"");
        server.join().unwrap();
        assert_eq!(output.status.code(), Some(2), "{end:?}");
        assert!(stderr_text(&output).contains("was interrupted"), "{}", stderr_text(&output));
        assert!(output.stdout.starts_with(b"a\tx\n"), "what came is printed");
    }
}

#[test]
fn status_shows_the_node() {
    let node = Node::start(&["--deadline", "1s"]);
    run_silently(&node, &["put", "a", "1"]);
    run_silently(&node, &["put", "a", "2"]);
    run_silently(&node, &["put", "b", "2"]);
    run_silently(&node, &["del", "a"]);
    run_silently(&node, &["del", "absent"]);
    let table = String::from_utf8(run_silently(&node, &["status"])).unwrap();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains(&url(&node)) && table.contains("  up  "), "{table}");
    assert!(table.contains(" is alone: its disk has the only copy"), "{table}");
    assert_eq!(node.client().put("/v0/cluster", b"").header("allow"), Some("GET, HEAD"));
    let status = json(&run_silently(&node, &["status", "--json"]));
    let row = &status["nodes"][0];
    assert_eq!((&row["url"], &row["up"]), (&url(&node).into(), &true.into()));
    assert_eq!(row["status"]["keys"], 1);
    assert!(row["status"]["disk_bytes"].as_u64().unwrap() > 0);
    let raw = node.client().get("/v0/status");
    assert_eq!((raw.status, raw.header("content-type")), (200, Some("application/json")));
    let raw = json(&raw.body());
    assert_eq!(raw["keys"], 1);
    let settings = &raw["settings"];
    assert!(settings["loops"].is_u64() && settings["memory"] == 512 << 20, "{settings}");
    assert_eq!((&settings["sync"], &settings["deadline"]), (&"always".into(), &"1s".into()));
}

/// As in a container network, only nodes can reach the nodes' addresses. The client reaches one
/// node through a forwarded port.
#[test]
fn status_needs_to_reach_one_node_only() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let tunnel = Tunnel::to(cluster.address(1));
    let look = |json: bool| {
        let args: &[&str] = if json { &["status", "--json"] } else { &["status"] };
        run_at(&tunnel.url(), args, b"")
    };
    let all = look(true);
    assert_eq!(all.status.code(), Some(0), "{}", stderr_text(&all));
    let nodes = json(&all.stdout);
    assert_eq!(nodes["asked"], "n1");
    for (number, row) in nodes["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&row["name"], &row["up"]), (&format!("n{number}").into(), &true.into()));
        assert_eq!(row["status"]["name"], row["name"]);
        assert!(row["status"].get("peers").is_none(), "they would grow with the square of nodes");
    }
    assert_eq!(tunnel.connections(), 1, "only the node that was asked is connected to");
    cluster.kill(2);
    cluster.client(0).put("/v0/entity?id=k&ack=2&from=3", b"missed");
    let missed = || json(&look(true).stdout)["nodes"][2]["hints"] == 1;
    wait_until("that the others tell what n2 missed", missed);
    let table = look(false);
    assert_eq!(table.status.code(), Some(1), "not every node is up");
    let text = String::from_utf8(table.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[3].starts_with("n2 ") && lines[3].contains("  down  "), "{text}");
    let at = cluster.address(2);
    assert!(lines[4].starts_with(&format!("n2 does not answer n1 at http://{at}: ")), "{text}");
    // A suspended node accepts connections but sends nothing.
    cluster.signal(0, Signal::STOP);
    let silent = json(&look(true).stdout);
    cluster.signal(0, Signal::CONT);
    let why = silent["nodes"][0]["error"].as_str().unwrap();
    assert!(why.contains("no response for") && silent["nodes"][1]["up"] == true, "{silent}");
}

/// A request for `/v0/cluster` causes requests to all nodes, so concurrent ones are limited.
/// Further ones are refused with the reason.
#[test]
fn concurrent_cluster_status_requests_are_limited() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    cluster.signal(2, Signal::STOP);
    let ask = || {
        let mut client = cluster.client(0);
        client.send("GET /v0/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client
    };
    let mut clients: Vec<_> = (0..20).map(|_| ask()).collect();
    let answers: Vec<_> = clients.iter_mut().map(|client| client.response()).collect();
    cluster.signal(2, Signal::CONT);
    let of = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert!(of(200) >= 4 && of(503) >= 1, "{answers:?}");
    assert_eq!(of(200) + of(503), 20);
    let refused = answers.iter().find(|answer| answer.status == 503).unwrap();
    assert_eq!(refused.header("retry-after"), Some("1"));
}

/// Runs a command against a server that sends one answer and closes the connection; returns the
/// server's URL, and the command's output.
pub(crate) fn run_against_answer(answer: &str, args: &[&str]) -> (String, Output) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = answer.to_owned();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let output = run_at(&url, args, b"");
    server.join().unwrap();
    (url, output)
}

#[test]
fn another_programs_answers_are_not_taken_for_kvorums() {
    let html = "Content-Type: text/html\r\nContent-Length: 9\r\n\r\nnot found";
    let json = "Content-Type: application/json\r\nContent-Length: 29\r\n\r\n\
                {\"status\":404,\"error\":\"none\"}";
    let problem = "Content-Type: application/problem+json\r\nContent-Length: 54\r\n\r\n\
                   {\"type\":\"about:blank\",\"title\":\"Not Found\",\"status\":404}";
    let page = "ETag: \"5f3-x\"\r\nContent-Length: 6\r\n\r\n<html>";
    let none = "Content-Length: 0\r\n\r\n";
    for (args, status, rest) in [
        (&["get", "k"][..], "404 Not Found", html),
        (&["get", "k"], "404 Not Found", json),
        (&["get", "k"], "404 Not Found", problem),
        (&["get", "k"], "404 Not Found", none),
        (&["get", "k", "--json"], "404 Not Found", html),
        (&["get", "k"], "200 OK", page),
        (&["put", "k", "v"], "201 Created", none),
        (&["put", "k", "v"], "502 Bad Gateway", html),
        (&["del", "k"], "404 Not Found", html),
        (&["scan"], "200 OK", page),
        (&["status"], "404 Not Found", html),
        (&["status"], "200 OK", page),
    ] {
        let (url, output) = run_against_answer(&format!("HTTP/1.1 {status}\r\n{rest}"), args);
        let said = stderr_text(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?} {answer_of}: {said}", answer_of = rest);
        assert_eq!(output.stdout, b"", "{args:?} {rest}");
        let told = said.contains("is this a kvorum node") || said.contains("unexpected response");
        assert!(told && said.contains(&url), "{args:?} {rest}: {said}");
    }
}

/// A proxy may send interim responses before the final one (RFC 9110, section 15.2), and may encode
/// the content, which changes the value.
#[test]
fn interim_responses_are_skipped_and_coded_values_refused() {
    let value = "Content-Length: 1\r\nETag: \"0123456789abcdef-01234567\"\r\n";
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </s.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    let (_, output) =
        run_against_answer(&format!("{hints}HTTP/1.1 200 OK\r\n{value}\r\nv"), &["get", "k"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"v"[..]), "{output:?}");
    let coded = format!("HTTP/1.1 200 OK\r\n{value}Content-Encoding: gzip\r\n\r\nv");
    let (url, output) = run_against_answer(&coded, &["get", "k"]);
    let said = stderr_text(&output);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{said}");
    assert!(said.contains("its Content-Encoding is gzip") && said.contains(&url), "{said}");
}

/// A proxy that timed out does not know the outcome of a write.
#[test]
fn a_write_that_another_program_answers_has_an_unknown_outcome() {
    let page = "<html>gave up</html>";
    let sized = format!("Content-Length: {}\r\n\r\n{page}", page.len());
    let until_end = format!("Connection: close\r\n\r\n{page}");
    let answers = [
        ("502 Bad Gateway", &sized),
        ("503 Service Unavailable", &sized),
        ("504 Gateway Timeout", &sized),
        ("504 Gateway Timeout", &until_end),
        ("200 OK", &sized),
        ("201 Created", &sized),
        // A node answers a deletion with this status, but always with a receipt.
        ("202 Accepted", &sized),
    ];
    let writes: [&[&str]; 7] = [
        &["put", "k", "v"],
        &["put", "k", "v", "--if-none-match", "*"],
        &["put", "k", "v", "--idempotency-key", "w"],
        &["add", "n", "1"],
        &["add", "n", "1", "--idempotency-key", "w"],
        &["del", "k", "--if-match", "*"],
        &["del", "k"],
    ];
    let kind = "unexpected-response".into();
    for (status, rest) in answers {
        let answer = format!("HTTP/1.1 {status}\r\n{rest}");
        for args in writes {
            let (url, output) = run_against_answer(&answer, args);
            let told = stderr_text(&output);
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{told}");
            let unknown = "outcome unknown: the write may have been applied, or may be later";
            assert!(told.contains(unknown) && told.contains(&url), "{args:?} {answer}: {told}");

            let (url, output) = run_against_answer(&answer, &[args, &["--json"]].concat());
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{args:?}");
            let problem = json(&output.stderr);
            assert_eq!((&problem["type"], &problem["outcome"]), (&kind, &"unknown".into()));
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("is this a kvorum node") && detail.contains(&url), "{detail}");
            let number = status[..3].parse::<u16>().unwrap();
            let is_whole = rest.starts_with("Content-Length");
            assert!(!is_whole || problem["status"] == number, "{problem}");
        }
        let (_, output) = run_against_answer(&answer, &["get", "k", "--json"]);
        let problem = stderr_text(&output);
        assert!(!problem.contains("outcome"), "nothing was written: {problem}");
    }
}

/// An administrator's change also has an unknown outcome if a proxy timed out or answered it.
#[test]
fn a_change_that_another_program_answers_has_an_unknown_outcome() {
    let page = "Content-Length: 6\r\n\r\n<html>";
    let plan = "0".repeat(32);
    let changes: [&[&str]; 9] = [
        &["repair"],
        &["compact"],
        &["compact", "--wait"],
        &["quota", "set", "q", "--soft", "1MiB"],
        &["quota", "remove", "q"],
        &["token", "create", "--name", "t"],
        &["token", "revoke", "t"],
        &["cluster", "apply", &plan],
        &["cluster", "abort"],
    ];
    let unknown = "outcome unknown: what was asked for may have been done, or may be later";
    for status in
        ["502 Bad Gateway", "504 Gateway Timeout", "200 OK", "201 Created", "202 Accepted"]
    {
        let answer = format!("HTTP/1.1 {status}\r\n{page}");
        for args in changes {
            let (url, output) = run_against_answer(&answer, args);
            let told = stderr_text(&output);
            assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{told}");
            assert!(told.contains(unknown) && told.contains(&url), "{args:?} {status}: {told}");
            let (_, output) = run_against_answer(&answer, &[args, &["--json"]].concat());
            let problem = json(&output.stderr);
            assert_eq!(problem["outcome"], "unknown", "{args:?} {status}: {problem}");
        }
    }
    let (_, output) = run_against_answer("", &["cluster", "abort"]);
    assert!(stderr_text(&output).contains(unknown), "{}", stderr_text(&output));
    // The node has accepted the request, and is gone while the command waits for the end of the
    // task.
    let accepted = "HTTP/1.1 202 Accepted\r\nContent-Length: 12\r\n\r\n{\"number\":1}";
    for args in [&["repair", "--wait"][..], &["compact", "--wait"]] {
        let (_, output) = run_against_answer(accepted, args);
        assert!(stderr_text(&output).contains(unknown), "{args:?}: {}", stderr_text(&output));
        let (_, output) = run_against_answer(accepted, &[args, &["--json"]].concat());
        assert_eq!(json(&output.stderr)["outcome"], "unknown", "{args:?}");
    }
    // The messages of commands that change nothing report no outcome.
    for args in [&["cluster", "plan", "--replicas", "2"][..], &["quota", "list"], &["status"]] {
        let (_, output) = run_against_answer(&format!("HTTP/1.1 502 Bad Gateway\r\n{page}"), args);
        let told = stderr_text(&output);
        assert!(output.status.code() == Some(2) && !told.contains("outcome"), "{args:?}: {told}");
    }
}

/// A write without any answer also has an unknown outcome, which `--json` reports to programs.
#[test]
fn a_write_without_an_answer_has_an_unknown_outcome() {
    let (url, output) = run_against_answer("", &["put", "k", "v"]);
    let told = stderr_text(&output);
    assert!(told.contains(&url) && told.contains("outcome unknown: the write may"), "{told}");
    let (url, output) = run_against_answer("", &["put", "k", "v", "--json"]);
    let problem = json(&output.stderr);
    assert_eq!((&problem["type"], &problem["outcome"]), (&"no-response".into(), &"unknown".into()));
    assert!(problem["detail"].as_str().unwrap().contains(&url), "{problem}");
}

/// With `--json` a command prints a node's refusal as the same JSON that the HTTP answer has.
#[test]
fn a_refusal_of_an_admin_command_is_json_for_programs() {
    let cluster = Cluster::start(3, &[]);
    cluster.wait_until_settled();
    let url = format!("http://{}", cluster.address(0));
    let no_plan = "0".repeat(32);
    let refusals: [(&[&str], u16, &str); 6] = [
        (&["quota", "remove", "none/"], 409, "quota-refused"),
        (&["token", "revoke", "nobody"], 409, "token-refused"),
        (&["cluster", "plan", "--remove", "n9"], 400, "bad-request"),
        (&["cluster", "plan", "--weight", "n0=x"], 400, "bad-request"),
        (&["cluster", "abort"], 409, "plan-refused"),
        (&["cluster", "apply", &no_plan], 409, "plan-refused"),
    ];
    for (args, status, kind) in refusals {
        let output = run_at(&url, args, b"");
        let told = stderr_text(&output);
        assert!(told.starts_with(&format!("kvorum: {url} answers {status}: ")), "{args:?}: {told}");
        let output = run_at(&url, &[args, &["--json"]].concat(), b"");
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{args:?}");
        let problem = json(&output.stderr);
        assert_eq!((&problem["status"], &problem["type"]), (&status.into(), &kind.into()));
        assert!(problem["detail"].is_string(), "{args:?}: {problem}");
    }
    // `status` also prints refusals: a node refuses concurrent requests for the cluster's status
    // beyond a limit.
    let body = r#"{"type":"overload","title":"Overload","status":503,"detail":"four at once"}"#;
    let answer = format!("HTTP/1.1 503 No\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (url, output) = run_against_answer(&answer, &["status"]);
    let told = format!("kvorum: {url} answers 503: Overload: four at once\n");
    assert_eq!((output.status.code(), stderr_text(&output)), (Some(2), told));
    let (_, output) = run_against_answer(&answer, &["status", "--json"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]));
    assert_eq!(stderr_text(&output), format!("{body}\n"));
}

/// A forwarded port, such as `ssh -L` creates: its connections lead to a node.
struct Tunnel {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Tunnel {
    fn to(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        // The thread runs until the test's process exits.
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                count.fetch_add(1, Ordering::Relaxed);
                let far = TcpStream::connect(node).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { address, accepted }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// The kernel accepts connections to a suspended process, which never answers.
#[test]
fn a_node_that_hangs_is_given_up_in_time_and_by_name() {
    let node = Node::start(&[]);
    run_silently(&node, &["put", "other", "v"]);
    node.signal(Signal::STOP);
    let all: [&[&str]; 5] =
        [&["get", "k"], &["put", "k", "w"], &["del", "k"], &["scan"], &["status"]];
    for args in all {
        let begun = Instant::now();
        let output = run_at(&url(&node), &[args, &["--timeout", "300ms"]].concat(), b"");
        assert!(begun.elapsed() < TIMEOUT, "{args:?}: {:?}", begun.elapsed());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr_text(&output));
        let said = stderr_text(&output);
        let first = said.lines().next().unwrap();
        assert!(first.contains(&url(&node)), "{args:?}: {first}");
        assert!(first.contains("no response within 300ms"), "{args:?}: {first}");
        let may_be_done = ["put", "del"].contains(&args[0]);
        assert_eq!(said.contains("may have been applied"), may_be_done, "{args:?}: {said}");
    }
    node.signal(Signal::CONT);
    run_silently(&node, &["get", "other", "--timeout", "30s"]);
    for wrong in ["0s", "1", "2h", "4000s"] {
        let output = run_at(&url(&node), &["get", "k", "--timeout", wrong], b"");
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", stderr_text(&output));
    }
}

#[test]
fn conditions_are_said_on_the_command_line_too() {
    let node = Node::start(&[]);
    let version = |key: &str| {
        let object = json(&run_silently(&node, &["get", key, "--json"]));
        object["version"].as_str().unwrap().to_owned()
    };
    run_silently(&node, &["put", "k", "one", "--if-none-match", "*"]);
    let unmet = run_refused(&node, 1, &["put", "k", "two", "--if-none-match", "*"]);
    assert!(unmet.contains("412: Precondition failed"), "{unmet}");
    let shown = format!("The current version is {}", version("k"));
    assert!(unmet.contains(&shown), "{unmet}");
    let unmet = run_refused(&node, 1, &["put", "k", "x", "--if-none-match", "*", "--json"]);
    let unmet = json(unmet.as_bytes());
    assert_eq!((&unmet["status"], unmet["version"].as_str()), (&412.into(), Some(&*version("k"))));
    let first = version("k");
    run_silently(&node, &["put", "k", "two", "--if-match", &first]);
    run_refused(&node, 1, &["put", "k", "three", "--if-match", &first]);
    let either = ["put", "k", "three", "--if-match", &first, "--if-match", &version("k")];
    run_silently(&node, &either);
    assert_eq!(run_silently(&node, &["get", "k"]), b"three");
    run_refused(&node, 1, &["del", "k", "--if-match", &first]);
    run_silently(&node, &["del", "k", "--if-match", "*"]);
    run_refused(&node, 1, &["del", "k", "--if-match", "*"]);
    let nonsense = run_refused(&node, 2, &["put", "k", "x", "--if-match", "one"]);
    assert!(nonsense.contains("\"one\" is not a valid version"), "{nonsense}");
    run_refused(&node, 2, &["put", "k", "x", "--if-match", "*", "--if-match", &first]);
    run_refused(&node, 2, &["put", "k", "x", "--if-match", "*", "--from", "2"]);

    assert_eq!(run_silently(&node, &["add", "n", "40"]), b"40\n");
    assert_eq!(run_silently(&node, &["add", "n", "-42"]), b"-2\n");
    assert_eq!(run_silently(&node, &["add", "n", "0", "--ack", "1", "--from", "1"]), b"-2\n");
    let refused_quorum = run_refused(&node, 2, &["add", "n", "0", "--ack", "2"]);
    assert!(refused_quorum.contains("ack=2 must not exceed from=1"), "{refused_quorum}");
    for (args, why) in [
        (&["add", "n", "1.5"][..], "\"1.5\" is not a decimal number of 64 bits, such as 12 or -3"),
        (&["get", "n", "--ack", "most"], "\"most\" is not a number of replicas, such as 2"),
    ] {
        let output = run_at(&url(&node), args, b"");
        assert!(
            output.status.code() == Some(2) && stderr_text(&output).contains(why),
            "{output:?}"
        );
    }
    let sum = json(&run_silently(&node, &["add", "n", "0", "--json"]));
    assert_eq!((&sum["sum"], sum["version"].as_str()), (&(-2).into(), Some(&*version("n"))));
    run_silently(&node, &["put", "x", "12a"]);
    assert!(run_refused(&node, 2, &["add", "x", "1"]).contains("409: Not a number"));
}
